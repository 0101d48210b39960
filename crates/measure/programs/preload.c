// SPDX-License-Identifier: Apache-2.0
// The reference: the simplest library that can be preloaded. Its constructor copies the whole huge pages
// of the executable's text to new transparent huge pages and moves them over the original. It checks only
// what the calls return, undoes nothing, and expects a single thread.
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((uintptr_t)HUGE_BYTES)

static int first_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
            continue;
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        uintptr_t end = (start + segment->p_memsz) & ~(HUGE - 1);
        start = (start + HUGE - 1) & ~(HUGE - 1);
        if (start >= end)
            continue;
        size_t bytes = end - start;
        char *area = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED)
            continue;
        char *copy = (char *)(((uintptr_t)area + HUGE - 1) & ~(HUGE - 1));
        madvise(copy, bytes, MADV_HUGEPAGE);
        memcpy(copy, (void *)start, bytes);
        mprotect(copy, bytes, PROT_READ | PROT_EXEC);
        mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start);
    }
    return 1; // the executable comes first; the others are left alone
}

__attribute__((constructor)) static void lift(void)
{
    dl_iterate_phdr(first_object, NULL);
}
