/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one word of each 4 kB page of its constants, in random order, until stdin ends. Each read waits for the one before it.
 * The words fit into the caches, and their pages do not fit into the TLB. The program makes a system call after every 2,000
 * reads, as a server does after each request, and uses almost none of its code. At the end it prints how many words were
 * wrong. With an argument it has written so many MB of memory that it has mapped itself. With a second one it reads these
 * instead of its constants; if that is "huge", it asks for huge pages. */
#define _GNU_SOURCE
#include "fat.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoul(argv[1], 0, 0) << 20 : 0;
	char *memory = size ? mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : 0;
	if (memory == MAP_FAILED)
		return 2;
	if (argc > 2 && !strcmp(argv[2], "huge"))
		madvise(memory, size, MADV_HUGEPAGE);
	if (memory)
		memset(memory, 1, size);
	const uint32_t *words = argc > 2 ? (const uint32_t *)memory : fat_data;
	size_t pages = argc > 2 ? size / 4096 : (size_t)(fat_data_end - fat_data) / 1024, wrong = 0;
	uint64_t random = 1;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	printf("ready\n");
	fflush(stdout);
	while (poll(&input, 1, 0) == 0)
		for (int i = 0; i < 2000; i++) {
			size_t page = (random >> 33) % pages, n = 1024 * page + 16 * (page % 64);
			uint32_t word = words[n];
			wrong += word != (argc > 2 ? 0x01010101 : fat_value((uint32_t)n));
			random = random * 6364136223846793005u + word;
		}
	printf("wrong %zu\n", wrong);
	return 0;
}
