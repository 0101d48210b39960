/* SPDX-License-Identifier: Apache-2.0 */
/* Grows and shrinks the kernel's brk area and malloc's, and checks what it wrote. */
#define _GNU_SOURCE
#include "fat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP (1 << 20)
#define STEPS 64

int main(void)
{
	char *start = sbrk(0), *top = start;
	for (int i = 0; i < STEPS; i++) {
		if (sbrk(STEP) != top)
			return printf("sbrk failed after %d MB\n", i), 1;
		memset(top, i + 1, STEP);
		top += STEP;
	}
	for (int i = 0; i < STEPS; i++)
		if (start[i * STEP] != i + 1 || start[(i + 1) * STEP - 1] != i + 1)
			return printf("the heap's MB %d changed\n", i), 2;
	for (int i = 0; i < STEPS; i++, top -= STEP)
		if (sbrk(-STEP) != top)
			return printf("sbrk did not shrink\n"), 3;
	if (brk(start + 3 * STEP) || sbrk(0) != start + 3 * STEP || start[0] || brk(start))
		return printf("brk failed\n"), 4;

	char *blocks[4096];
	for (size_t i = 0; i < 4096; i++) {
		if (!(blocks[i] = malloc(16384)))
			return printf("malloc failed\n"), 5;
		memset(blocks[i], (int)i, 16384);
	}
	int in_heap = 0;
	for (size_t i = 0; i < 4096; i++) {
		if ((unsigned char)blocks[i][16383] != (unsigned char)i)
			return printf("malloc's block %zu changed\n", i), 6;
		in_heap += blocks[i] >= start && blocks[i] < (char *)sbrk(0);
	}
	printf("heap grows, %d blocks in it, wrong %zu\n", in_heap, fat_wrong(16));
	return 0;
}
