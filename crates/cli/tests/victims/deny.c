// SPDX-License-Identifier: Apache-2.0
/*
 * Starts a program once for each system call number of a range, under a seccomp filter that applies
 * ACTION to this call, and prints how each start ended:
 *
 *   deny [fork] ACTION FIRST LAST TIMEOUT_MS PROG [ARGS...]
 *
 * ACTION is an errno, `kill`, `trap`, or `allow`. With `fork`, the process under the filter forks the process
 * that becomes the program. Each line of stdout is `NUMBER STATUS SIGNAL BYTES LINE`. BYTES is how much
 * the program has written to stderr, and LINE what it has written to stdout, with `|` for line feeds.
 * SIGNAL begins with `late` for a start that did not end in time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void filter(unsigned number, unsigned action)
{
	struct sock_filter ops[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof ops / sizeof *ops, ops };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(99);
}

static long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The child: becomes the program, under the filter. */
static void start(int forks, unsigned number, unsigned action, int allow, char **argv)
{
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
	setpgid(0, 0);
	if (!allow)
		filter(number, action);
	if (forks) {
		int status;
		pid_t pid = fork();
		if (pid < 0)
			_exit(98);
		if (pid > 0) {
			while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
				;
			if (WIFSIGNALED(status)) {
				signal(WTERMSIG(status), SIG_DFL);
				raise(WTERMSIG(status));
			}
			_exit(WEXITSTATUS(status));
		}
	}
	execvp(*argv, argv);
	_exit(errno == ENOENT ? 127 : 126);
}

/* Reads two pipes to their ends, and waits for the child. Returns 0 if that takes too long. */
static int collect(pid_t pid, int *out, char *text, size_t size, size_t *errors, long timeout, int *status)
{
	struct pollfd fds[2] = { { out[0], POLLIN, 0 }, { out[1], POLLIN, 0 } };
	long until = now_ms() + timeout;
	size_t got = 0;
	while (fds[0].fd >= 0 || fds[1].fd >= 0) {
		char rest[4096];
		long left = until - now_ms();
		if (left <= 0)
			return 0;
		poll(fds, 2, (int)left);
		for (int i = 0; i < 2; i++) {
			ssize_t n;
			if (fds[i].fd < 0 || !fds[i].revents)
				continue;
			n = read(fds[i].fd, rest, sizeof rest);
			if (n <= 0) {
				fds[i].fd = -1;
			} else if (i) {
				*errors += (size_t)n;
				if (getenv("DENY_SHOW"))
					(void)!write(2, rest, (size_t)n);
			} else {
				size_t take = (size_t)n < size - 1 - got ? (size_t)n : size - 1 - got;
				memcpy(text + got, rest, take);
				got += take;
			}
		}
	}
	text[got] = 0;
	while (now_ms() < until) {
		pid_t done = waitpid(pid, status, WNOHANG);
		if (done == pid)
			return 1;
		usleep(200);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int forks = argc > 1 && !strcmp(argv[1], "fork");
	argv += forks;
	if (argc - forks < 6)
		return 2;
	const char *name = argv[1];
	int allow = !strcmp(name, "allow");
	unsigned action = !strcmp(name, "kill")	  ? SECCOMP_RET_KILL_PROCESS
			  : !strcmp(name, "trap") ? SECCOMP_RET_TRAP
						  : SECCOMP_RET_ERRNO | (unsigned)atoi(name);
	int first = atoi(argv[2]), last = atoi(argv[3]);
	long timeout = atol(argv[4]);
	for (int number = first; number <= last; number++) {
		int out[2], err[2], status = 0;
		char text[256] = "";
		size_t errors = 0;
		if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
			return 3;
		pid_t pid = fork();
		if (pid == 0) {
			int null = open("/dev/null", O_RDONLY);
			dup2(null, 0);
			dup2(out[1], 1);
			dup2(err[1], 2);
			if (null > 2)
				close(null);
			start(forks, (unsigned)number, action, allow, argv + 5);
		}
		close(out[1]);
		close(err[1]);
		int pipes[2] = { out[0], err[0] };
		int done = collect(pid, pipes, text, sizeof text, &errors, timeout, &status);
		if (!done) {
			kill(-pid, SIGKILL);
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
		}
		for (char *c = text; *c; c++)
			if (*c == '\n')
				*c = '|';
		printf("%d %d %s%d %zu %s\n", number, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
		       done ? "" : "late", WIFSIGNALED(status) ? WTERMSIG(status) : 0, errors, text);
		fflush(stdout);
		close(out[0]);
		close(err[0]);
	}
	return 0;
}
