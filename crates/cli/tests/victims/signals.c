/* SPDX-License-Identifier: Apache-2.0 */
/* Gets signals during its whole start: a child of a constructor sends `count`
 * real-time signals to it, one every 100 microseconds. Real-time signals queue, so each
 * has to arrive exactly once. Build with -DLIBRARY for the object (whose constructor
 * runs before the program's entry point), else for the program. */
#define _GNU_SOURCE
#include "fat.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 2000
#ifdef LIBRARY
static atomic_int arrived, out_of_order, plain;
static pid_t sender;

static void on_queued(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if (info->si_value.sival_int != atomic_fetch_add(&arrived, 1))
		atomic_fetch_add(&out_of_order, 1);
}

static void on_plain(int signal)
{
	(void)signal;
	atomic_fetch_add(&plain, 1);
}

__attribute__((constructor)) static void start(void)
{
	struct sigaction queued = { .sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct sigaction once = { .sa_handler = on_plain, .sa_flags = SA_RESTART };
	sigaction(SIGRTMIN, &queued, NULL);
	sigaction(SIGUSR1, &once, NULL);
	pid_t target = getpid();
	sender = fork();
	if (sender == 0) {
		struct timespec pause = { 0, 100000 };
		kill(target, SIGUSR1);
		for (int i = 0; i < COUNT; i++) {
			sigqueue(target, SIGRTMIN, (union sigval){ .sival_int = i });
			nanosleep(&pause, NULL);
		}
		_exit(0);
	}
	struct timespec pause = { 0, 5000000 };
	nanosleep(&pause, NULL);
}

void finish(void)
{
	int status = -1;
	while (waitpid(sender, &status, 0) < 0)
		;
	printf("queued %d, out of order %d, plain %d, sender %d, wrong %zu\n", atomic_load(&arrived),
	       atomic_load(&out_of_order), atomic_load(&plain), status, fat_wrong(16));
}
#else
void finish(void);
int main(void)
{
	finish();
	return 0;
}
#endif
