/* SPDX-License-Identifier: Apache-2.0 */
/* Forks again and again, and writes to 8 MB of small pages while the child lives, so that each write copies a page. It ends
 * when it is killed, or after SECONDS.
 *
 *   copied SECONDS [thread]
 *
 *   thread   another thread than the first one writes
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (8u << 20)

static volatile char *memory;
static time_t end;

static time_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

static void *work(void *unused)
{
	while (now() < end) {
		pid_t child = fork();
		if (child == 0) {
			/* It ends with its parent, also if that is killed. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			while (getppid() != 1)
				sleep(1);
			_exit(0);
		}
		if (child < 0)
			exit(1);
		for (size_t at = 0; at < SIZE; at += 4096)
			memory[at]++;
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	end = now() + (argc > 1 ? atoi(argv[1]) : 1);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise((void *)memory, SIZE, MADV_NOHUGEPAGE))
		return 1;
	memset((void *)memory, 1, SIZE);
	puts("ready");
	fflush(stdout);
	if (argc > 2 && !strcmp(argv[2], "thread")) {
		if (pthread_create(&thread, NULL, work, NULL))
			return 1;
		return pthread_join(thread, NULL) != 0;
	}
	work(NULL);
	return 0;
}
