// SPDX-License-Identifier: Apache-2.0
/*
 * Prints what a program can see of children that it never started.
 */
#include "fat.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rusage usage;
	struct sigaction action;
	sigset_t pending;
	int status = 0;
	/* The child was started by the shell that has become this program. */
	if (argc > 1 && !strcmp(argv[1], "wait")) {
		pid_t pid = waitpid(-1, &status, 0);
		printf("a child of before: %s, %d\n", pid > 0 ? "there" : strerror(errno), WEXITSTATUS(status));
	}
	sigaction(SIGCHLD, NULL, &action);
	sigpending(&pending);
	printf("SIGCHLD %s, pending %d\n", action.sa_handler == SIG_IGN ? "ignored" : "default",
	       sigismember(&pending, SIGCHLD));
	printf("waitpid: %s\n", waitpid(-1, &status, WNOHANG) < 0 ? strerror(errno) : "something");
	getrusage(RUSAGE_CHILDREN, &usage);
	if (argc < 2)
		printf("children: %ld kB, %ld us, %ld faults\n", usage.ru_maxrss,
		       (long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
			       usage.ru_utime.tv_usec + usage.ru_stime.tv_usec,
		       usage.ru_minflt + usage.ru_majflt);
	printf("wrong %zu\n", fat_wrong(64));
	return 0;
}
