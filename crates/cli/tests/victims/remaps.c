/* SPDX-License-Identifier: Apache-2.0 */
/* `remaps FILE`: prints "ready", waits for a byte, maps FILE over its own code, and prints "mapped". It never reads what it has
 * mapped. */
#include "fat.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

int main(int argc, char **argv)
{
	uintptr_t start = ((uintptr_t)fat_code + PAGE - 1) & -(uintptr_t)PAGE;
	uintptr_t end = (uintptr_t)fat_code_end & -(uintptr_t)PAGE;
	char byte;
	int file = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0 || fat_wrong(64))
		return 2;
	puts("ready");
	fflush(stdout);
	if (read(0, &byte, 1) != 1)
		return 3;
	if (mmap((void *)start, end - start, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
		return 4;
	puts("mapped");
	fflush(stdout);
	for (;;)
		pause();
}
