/* SPDX-License-Identifier: Apache-2.0 */
/* Prints "ready", waits until stdin ends, and checks its code and constants before and
 * after. Meanwhile `hold spin` calls the function in the middle of its code every 10 ms,
 * for a debugger; `hold burn` calls functions all the time, for a profiler; `hold serve` makes a
 * system call after every few of them, as a server does. With NO_THP in its environment it forbids huge pages to itself. */
#define _GNU_SOURCE
#include "fat.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char byte;
	if (getenv("NO_THP"))
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	struct pollfd input = { .fd = 0, .events = POLLIN };
	while (argc > 1 && !strcmp(argv[1], "spin") && poll(&input, 1, 10) == 0)
		((uint32_t (*)(void))(uintptr_t)(fat_code + (fat_code_end - fat_code) / 2))();
	while (argc > 1 && !strcmp(argv[1], "burn") && poll(&input, 1, 0) == 0)
		for (int i = 0; i < 1000; i++)
			fat_wrong(97);
	for (int i = 0; argc > 1 && !strcmp(argv[1], "serve") && (i % 100 || poll(&input, 1, 0) == 0); i++) {
		fat_wrong(97);
		getppid();
	}
	while (read(0, &byte, 1) > 0)
		;
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
