/* SPDX-License-Identifier: Apache-2.0 */
/* Says "ready", sleeps until stdin ends, and checks its code and constants before and
 * after. `hold spin N` calls the function in the middle of its code N times in between,
 * one hundredth of a second apart, for the debugger. */
#define _GNU_SOURCE
#include "fat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char byte;
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "spin"))
		for (int i = 0; i < atoi(argv[2]); i++) {
			((uint32_t (*)(void))(uintptr_t)(fat_code + (fat_code_end - fat_code) / 2))();
			usleep(10000);
		}
	while (read(0, &byte, 1) > 0)
		;
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
