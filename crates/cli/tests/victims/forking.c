/* SPDX-License-Identifier: Apache-2.0 */
/* A server that forks: workers compute in megabytes of code and make a system call after every few of its functions.
 *
 *   forking N     N workers, until stdin ends
 *   forking N MS  as before; every MS milliseconds the oldest of them ends and a new one takes its place
 *
 * Each worker checks all code and constants at its end. Prints "ready" when the workers run, and at the end
 * how many of them have found something wrong. */
#define _GNU_SOURCE
#include "fat.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 16

static volatile sig_atomic_t stop;

static void on_term(int signal)
{
	(void)signal;
	stop = 1;
}

static pid_t worker(void)
{
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, on_term);
	while (!stop) {
		if (fat_wrong(97) != 0)
			_exit(1);
		getppid();
	}
	_exit(fat_wrong(1) != 0);
}

static int ended_wrong(pid_t pid)
{
	int status = 0;
	/* It may not have its handler yet, and then it ends by the signal. */
	kill(pid, SIGTERM);
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) != SIGTERM;
}

int main(int argc, char **argv)
{
	pid_t workers[MOST];
	int count = argc > 1 ? atoi(argv[1]) : 1, pause = argc > 2 ? atoi(argv[2]) : -1, wrong = 0;
	if (count > MOST)
		return 2;
	for (int i = 0; i < count; i++)
		workers[i] = worker();
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	struct pollfd input = { .fd = 0, .events = POLLIN };
	for (int oldest = 0; poll(&input, 1, pause) == 0; oldest = (oldest + 1) % count) {
		wrong += ended_wrong(workers[oldest]);
		workers[oldest] = worker();
	}
	for (int i = 0; i < count; i++)
		wrong += ended_wrong(workers[i]);
	printf("wrong %zu\nwrong workers %d\n", fat_wrong(1), wrong);
	return 0;
}
