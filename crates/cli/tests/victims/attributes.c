/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with 8 MB of data and 8 MB of zero data. As LIBRARY: a constructor that gives both the
 * attribute $ASK before the program's entry point. The program waits for the end of its stdin.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef LIBRARY
static int ask(struct dl_phdr_info *info, size_t size, void *what) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
    if (ph->p_type != PT_LOAD || !(ph->p_flags & PF_W)) continue;
    uintptr_t start = (info->dlpi_addr + ph->p_vaddr + 4095) & -4096ul;
    size_t bytes = (info->dlpi_addr + ph->p_vaddr + ph->p_memsz - start) & -4096ul;
    void *at = (void *)start;
    int advice = !strcmp(what, "dontdump") ? MADV_DONTDUMP : !strcmp(what, "dontfork") ? MADV_DONTFORK : MADV_NOHUGEPAGE;
    if (strcmp(what, "mlock") ? madvise(at, bytes, advice) : mlock(at, bytes)) perror(what), exit(99);
  }
  return 1; /* only the program, which comes first */
}

__attribute__((constructor)) static void early(void) {
  char *what = getenv("ASK");
  if (what) dl_iterate_phdr(ask, what);
}

void linked(void) {}
#else
void linked(void);
static volatile char data[8 << 20] = {1}, zero[8 << 20];

int main(void) {
  linked();
  for (size_t i = 0; i < sizeof zero; i += 4096) zero[i] = data[i];
  while (getchar() != EOF) continue;
  return 0;
}
#endif
