/* SPDX-License-Identifier: Apache-2.0 */
/* Changes a function of its own code, as a debugger or a runtime does, and lets the kernel write that page to swap space. Prints
 * "ready 1" if the page is there, else "ready 0". For each line of stdin it prints what the function returns: 2, and 1 if the change
 * was lost. The function lies in a whole huge page of code. */
#define _GNU_SOURCE
#include "fat.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef __aarch64__ /* mov w0, #n; ret */
#define RETURNS(n) ".long 0x52800000 | " #n " << 5, 0xd65f03c0\n"
static const uint32_t two[] = { 0x52800000 | 2 << 5, 0xd65f03c0 };
#else /* mov $n, %eax; ret */
#define RETURNS(n) ".byte 0xb8\n.long " #n "\n.byte 0xc3\n"
static const unsigned char two[] = { 0xb8, 2, 0, 0, 0, 0xc3 };
#endif

__asm__(".pushsection .text\n"
        ".balign 0x200000\n"
        ".skip 0x80000, 0x5a\n"
        ".hidden function\nfunction:\n" RETURNS(1)
        ".balign 0x200000, 0x5a\n"
        ".popsection\n");
extern unsigned char function[];

/* Returns whether the page of an address is in swap space. */
static int is_swapped(const void *at)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	ssize_t got = pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)at / (uintptr_t)getpagesize() * sizeof entry));
	close(fd);
	return got == sizeof entry && entry >> 62 == 1;
}

int main(void)
{
	char line[16];
	size_t page = (size_t)getpagesize();
	void *at = (void *)((uintptr_t)function & ~(page - 1));
	if (mprotect(at, page, PROT_READ | PROT_WRITE) != 0)
		return 3;
	memcpy(function, two, sizeof two);
	if (mprotect(at, page, PROT_READ | PROT_EXEC) != 0)
		return 3;
	__builtin___clear_cache((char *)function, (char *)function + sizeof two);
	if (((uint32_t(*)(void))(uintptr_t)function)() != 2)
		return 4;
	printf("wrong %zu\n", fat_wrong(1));
	for (int i = 0; i < 100 && !is_swapped(at); i++) {
		madvise(at, page, MADV_PAGEOUT);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	printf("ready %d\n", is_swapped(at));
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		printf("%u\n", ((uint32_t(*)(void))(uintptr_t)function)());
		fflush(stdout);
	}
	return 0;
}
