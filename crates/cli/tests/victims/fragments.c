/* SPDX-License-Identifier: Apache-2.0 */
/* Takes MB of small pages, and gives every other one back: what is free of them then is fragmented, and holds no huge page.
 * Prints "ready", waits for a line, and asks for a quarter of it as huge pages. The kernel has to move small pages for each
 * (compaction), if there is no other free huge page. Then it sleeps until its input ends.
 *
 *   fragments MB
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE (2u << 20)
#define SMALL 4096u

static char *map(size_t size, int advice)
{
	char *memory = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(1);
	memory = (char *)(((uintptr_t)memory + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	if (madvise(memory, size, advice))
		exit(1);
	return memory;
}

int main(int argc, char **argv)
{
	size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
	char *small = map(size, MADV_NOHUGEPAGE), *huge = map(size / 4, MADV_HUGEPAGE);
	FILE *first = fopen("/proc/self/oom_score_adj", "w");

	/* If memory is short after all, this process dies, and no other. */
	if (first) {
		fputs("1000", first);
		fclose(first);
	}
	for (size_t at = 0; at < size; at += SMALL)
		small[at] = 1;
	for (size_t at = 0; at < size; at += 2 * SMALL)
		madvise(small + at, SMALL, MADV_DONTNEED);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 0;
	for (size_t at = 0; at < size / 4; at += HUGE)
		huge[at] = 1;
	while (getchar() != EOF)
		;
	return 0;
}
