/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the name it was started as and whether its own code is on huge pages, as smaps shows it.
 * Ends with the status or by the signal of its arguments (`child code 7`, `child signal 9`). */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[512];
	unsigned long start = 0, end = 0, from, to, kb, huge = 0;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			start = from, end = to;
			continue;
		}
		if (sscanf(line, "AnonHugePages: %lu", &kb) != 1)
			continue;
		if (start < (unsigned long)fat_code_end && end > (unsigned long)fat_code)
			huge += kb;
	}
	fclose(smaps);
	int open = 0;
	for (int fd = 0; fd < 64; fd++)
		open += fcntl(fd, F_GETFD) != -1;
	printf("%s %s, %d open, wrong %zu\n", argv[0], huge >= 4096 ? "huge" : "small", open, fat_wrong(1));
	fflush(stdout);
	if (argc > 2 && !strcmp(argv[1], "code"))
		return atoi(argv[2]);
	if (argc > 2 && !strcmp(argv[1], "signal"))
		raise(atoi(argv[2]));
	return 0;
}
