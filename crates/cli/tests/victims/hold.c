/* SPDX-License-Identifier: Apache-2.0 */
/* Says "ready", sleeps until stdin ends, and checks its code and constants before and
 * after. `spin N` calls traced() N times in between, for the debugger. */
#define _GNU_SOURCE
#include "fat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) int traced(int n)
{
	__asm__ volatile("" : "+r"(n));
	return n + 1;
}

int main(int argc, char **argv)
{
	char byte;
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "spin"))
		for (int i = 0; i < atoi(argv[2]); i++) {
			traced(i);
			usleep(10000);
		}
	while (read(0, &byte, 1) > 0)
		;
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
