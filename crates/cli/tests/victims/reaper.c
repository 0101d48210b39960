/* SPDX-License-Identifier: Apache-2.0 */
/* reaper [signal=N:MICROSECONDS] -- PROG ARGS: runs PROG, adopts the processes that it
 * leaves behind, and prints on stderr how they all ended. Its last line is
 *
 *   reaper: exited 7, left 0
 *   reaper: killed 9, left 0
 *
 * after every adopted process has ended. It names a process that has not after ten seconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void name_children(void)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
	FILE *f = fopen(path, "r");
	for (int pid; f && fscanf(f, "%d", &pid) == 1;) {
		snprintf(path, sizeof path, "/proc/%d/stat", pid);
		FILE *stat = fopen(path, "r");
		if (stat && fgets(line, 60, stat))
			fprintf(stderr, "reaper: still there: %s\n", line);
		if (stat)
			fclose(stat);
		/* This process's own child by now. */
		kill(pid, SIGKILL);
	}
}

int main(int argc, char **argv)
{
	int at = 1, number = 0, after = 0, status = 0;
	if (argc > at && sscanf(argv[at], "signal=%d:%d", &number, &after) == 2)
		at++;
	if (argc < at + 2 || strcmp(argv[at], "--"))
		return 99;
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		return 99;
	pid_t main_pid = fork();
	if (main_pid == 0) {
		execvp(argv[at + 1], argv + at + 1);
		perror(argv[at + 1]);
		_exit(98);
	}
	if (number) {
		usleep((useconds_t)after);
		kill(main_pid, number);
		if (number == SIGSTOP) {
			usleep(50000);
			kill(main_pid, SIGCONT);
		}
	}
	while (waitpid(main_pid, &status, 0) < 0)
		if (errno != EINTR)
			return 99;
	int left = 0;
	for (int patience = 0; patience < 10000; patience++) {
		pid_t got = waitpid(-1, NULL, WNOHANG | __WALL);
		if (got < 0)
			break;
		if (got == 0)
			usleep(1000);
		if (patience == 9999) {
			left = 1;
			name_children();
		}
	}
	if (WIFSIGNALED(status))
		fprintf(stderr, "reaper: killed %d, left %d\n", WTERMSIG(status), left);
	else
		fprintf(stderr, "reaper: exited %d, left %d\n", WEXITSTATUS(status), left);
	return 0;
}
