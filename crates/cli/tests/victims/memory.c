/* SPDX-License-Identifier: Apache-2.0 */
/* memory WORD...: does what the words say, in their order, and checks its code and constants
 * afterwards.
 *   heap=MB   allocates MB megabytes and writes to each page of them
 *   bss       writes one byte to every huge page of 16 MB of zeros
 *   stack     writes to each page of 1 MB of its stack
 *   patch     writes to a page of its own code, and runs it
 *   unmap     replaces a page of its own code by MAP_FIXED, and unmaps another one
 *   dontneed  gives its code back by MADV_DONTNEED, and runs it */
#define _GNU_SOURCE
#include "fat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(call) do { if (!(call)) { perror("memory: " #call); exit(9); } } while (0)
#define ZEROS (16ul << 20)

static char zeros[ZEROS];

static uint32_t run(size_t i)
{
	return ((uint32_t (*)(void))(uintptr_t)(fat_code + 64 * i))();
}

/* Returns page `number` of code in the middle of a whole huge page, and sets its first function. */
static unsigned char *page_of_code(size_t number, size_t *function)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE), step = 2ul << 20;
	uintptr_t at = ((uintptr_t)fat_code + step) / step * step + step / 2 + number * size;
	*function = (at - (uintptr_t)fat_code + 63) / 64;
	return (unsigned char *)at;
}

static void patch(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE), i;
	unsigned char *page = page_of_code(0, &i), *code = (unsigned char *)(uintptr_t)fat_code + 64 * i;
	unsigned char old[64];
	memcpy(old, code, 64);
	MUST(!mprotect(page, size, PROT_READ | PROT_WRITE));
	memcpy(code, fat_code + 64 * (i + 1), 64);
	MUST(!mprotect(page, size, PROT_READ | PROT_EXEC));
	__builtin___clear_cache((char *)code, (char *)code + 64);
	printf("patched: %s\n", run(i) == fat_value((uint32_t)i + 1) ? "runs" : "WRONG");
	MUST(!mprotect(page, size, PROT_READ | PROT_WRITE));
	memcpy(code, old, 64);
	MUST(!mprotect(page, size, PROT_READ | PROT_EXEC));
	__builtin___clear_cache((char *)code, (char *)code + 64);
}

static void unmap(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE), i;
	unsigned char *first = page_of_code(0, &i), *second = page_of_code(1, &i), *saved = malloc(2 * size);
	MUST(saved);
	memcpy(saved, first, 2 * size);
	MUST(mmap(first, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == first);
	MUST(!munmap(second, size));
	MUST(mmap(second, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == second);
	memcpy(first, saved, 2 * size);
	MUST(!mprotect(first, 2 * size, PROT_READ | PROT_EXEC));
	__builtin___clear_cache((char *)first, (char *)first + 2 * size);
	printf("replaced and unmapped\n");
}

static void dontneed(void)
{
	size_t step = 2ul << 20;
	uintptr_t from = ((uintptr_t)fat_code + step) / step * step, to = (uintptr_t)fat_code_end / step * step;
	MUST(to > from);
	MUST(!madvise((void *)from, to - from, MADV_DONTNEED));
	/* Looks before it calls: a function of zeros would be executed. */
	unsigned long zero = 0;
	for (const volatile unsigned char *at = (void *)from; at < (unsigned char *)to; at += 64)
		zero += !at[0] && !at[1] && !at[2] && !at[3];
	printf("given back: %lu functions are zeros\n", zero);
	if (zero) {
		fflush(stdout);
		_exit(8);
	}
}

__attribute__((noinline)) static void stack(void)
{
	volatile char deep[1 << 20];
	for (size_t i = 0; i < sizeof deep; i += 4096)
		deep[i] = 1;
}

int main(int argc, char **argv)
{
	for (int n = 1; n < argc; n++) {
		const char *word = argv[n];
		if (!strncmp(word, "heap=", 5)) {
			size_t bytes = (size_t)atol(word + 5) << 20;
			volatile char *block = malloc(bytes);
			MUST(block);
			for (size_t i = 0; i < bytes; i += 4096)
				block[i] = 1;
		} else if (!strcmp(word, "bss")) {
			for (size_t i = 0; i < ZEROS; i += 2ul << 20)
				((volatile char *)zeros)[i] = 1;
		} else if (!strcmp(word, "stack")) {
			stack();
		} else if (!strcmp(word, "patch")) {
			patch();
		} else if (!strcmp(word, "unmap")) {
			unmap();
		} else if (!strcmp(word, "dontneed")) {
			dontneed();
		} else {
			fprintf(stderr, "memory: %s?\n", word);
			return 7;
		}
	}
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
