/* SPDX-License-Identifier: Apache-2.0 */
/* Computes in megabytes of its own code until its stdin ends. What it reads from stdin it obeys:
 * 'r' rests, 'w' works again, 'o' switches transparent huge pages off for itself, as mariadbd does.
 * It answers each with the byte. After every few of its functions it makes a system call, as a server does.
 *
 *   works            computes itself
 *   works thp-off    as mariadbd: it switches transparent huge pages off as soon as it runs
 *   works children N N children compute, the parent waits
 *   works short      children that compute for some milliseconds follow each other */
#define _GNU_SOURCE
#include "fat.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int thp_off(void)
{
	return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

static void compute(int times)
{
	for (int i = 0; i < times; i++) {
		if (fat_wrong(97) != 0)
			abort();
		getppid();
	}
}

static pid_t child(int times)
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		compute(times);
		_exit(0);
	}
	return pid;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	if (!strcmp(how, "thp-off") && thp_off() != 0)
		return 2;
	int children = !strcmp(how, "children") ? atoi(argv[2]) : 0;
	for (int i = 0; i < children; i++)
		child(1 << 30);
	int works = children == 0, is_short = !strcmp(how, "short");
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	struct pollfd input = { .fd = 0, .events = POLLIN };
	for (;;) {
		char byte;
		if (poll(&input, 1, works ? 0 : -1) > 0) {
			if (read(0, &byte, 1) <= 0)
				break;
			works = byte == 'w' || (works && byte != 'r');
			if (byte == 'o' && thp_off() != 0)
				return 3;
			printf("%c\n", byte);
			fflush(stdout);
		} else if (is_short) {
			waitpid(child(20), NULL, 0);
		} else {
			compute(100);
		}
	}
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
