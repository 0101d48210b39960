/* SPDX-License-Identifier: Apache-2.0 */
/* Has 64 MB of code in 16 blocks of 4 MB, runs the blocks that its arguments name, and checks what
 * each function returns. `wait` prints "ready" and waits until stdin ends; `burn` runs the blocks so
 * far for half a second of CPU time; `run` prints where they are and in which process, and runs the blocks so far until a
 * byte of stdin comes, or its end; `leave` ends the process and goes on in a child; `forget` leaves the blocks so far out of
 * what is run from now on; `change` writes to the middle of the first block, where no function is, and checks at the end
 * that this is still there; `become` starts the program anew by execve(2), with the arguments that follow. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

__asm__(".pushsection .text\n"
        ".balign 64\n"
        ".hidden blocks\nblocks:\n"
        ".rept 16\n.incbin \"" FAT_CODE "\"\n.endr\n"
        ".hidden blocks_end\nblocks_end:\n"
        ".popsection\n");

extern const unsigned char blocks[] __attribute__((visibility("hidden")));
extern const unsigned char blocks_end[] __attribute__((visibility("hidden")));

static size_t run(size_t block)
{
	size_t wrong = 0, size = (size_t)(blocks_end - blocks) / 16;
	for (size_t i = 0; i < size / 64; i++) {
		uint32_t (*function)(void) = (uint32_t (*)(void))(uintptr_t)(blocks + block * size + 64 * i);
		wrong += function() != (uint32_t)i * 2654435761u + 12345u;
	}
	return wrong;
}

/* Changes the last of the 64 bytes of a function, and returns where it is. */
static volatile unsigned char *change(size_t block)
{
	size_t size = (size_t)(blocks_end - blocks) / 16, page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)blocks + block * size + size / 2 + 63;
	void *start = (void *)(at & ~(page - 1));
	if (mprotect(start, page, PROT_READ | PROT_WRITE))
		exit(3);
	*(volatile unsigned char *)at ^= 0xff;
	if (mprotect(start, page, PROT_READ | PROT_EXEC))
		exit(3);
	return (volatile unsigned char *)at;
}

int main(int argc, char **argv)
{
	size_t wrong = 0;
	int first = 1;
	volatile unsigned char *changed = NULL;
	unsigned char before = 0;
	char byte;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "leave")) {
			if (fork() > 0)
				return 0;
			setsid();
		} else if (!strcmp(argv[i], "forget")) {
			first = i;
		} else if (!strcmp(argv[i], "become")) {
			argv[i] = argv[0];
			execv(argv[0], argv + i);
			return 4;
		} else if (!strcmp(argv[i], "change")) {
			changed = change((size_t)atoi(argv[first]));
			before = *changed;
		} else if (!strcmp(argv[i], "wait")) {
			printf("ready\n");
			fflush(stdout);
			while (read(0, &byte, 1) > 0)
				;
		} else if (!strcmp(argv[i], "run")) {
			struct pollfd input = { .fd = 0, .events = POLLIN };
			printf("at %p %p in %d\n", (const void *)blocks, (const void *)blocks_end, getpid());
			fflush(stdout);
			while (poll(&input, 1, 0) == 0)
				for (int k = first; k < i; k++)
					if (argv[k][0] >= '0' && argv[k][0] <= '9')
						wrong += run((size_t)atoi(argv[k]));
			if (read(0, &byte, 1) < 0)
				return 1;
		} else if (!strcmp(argv[i], "burn")) {
			for (clock_t until = clock() + CLOCKS_PER_SEC / 2; clock() < until;)
				for (int k = first; k < i; k++)
					wrong += run((size_t)atoi(argv[k]));
		} else {
			wrong += run((size_t)atoi(argv[i]));
		}
	}
	if (changed)
		wrong += *changed != before;
	printf("wrong %zu\n", wrong);
	return 0;
}
