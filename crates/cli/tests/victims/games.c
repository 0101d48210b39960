/* SPDX-License-Identifier: Apache-2.0 */
/* What a hostile user does to be lifted at the wrong moment: games MODE [MILLISECONDS]. Prints "ready", checks code and constants
 * all the time, and prints "WRONG" and ends with 3 if any is not what it should be.
 *
 *   exits    ends after so many milliseconds
 *   execs    executes itself again after so many milliseconds
 *   traced   a child asks to be traced, and is continued after each stop
 *   seized   a child is interrupted every few milliseconds by its tracer
 *   stopped  a child is stopped and continued every few milliseconds
 *   names    gives itself names with control characters
 *   floods   makes as many processes as its user may have, most of which end at once
 *
 * It ends after two minutes, whatever it does, and with the process that has started it. */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MS = 1000000, LIMIT = 120, STEP_MS = 7, PROCESSES = 500 };

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / MS;
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * MS };
	nanosleep(&t, NULL);
}

static void check(void)
{
	if (fat_wrong(97)) {
		puts("WRONG");
		fflush(stdout);
		_exit(3);
	}
}

static void burn(long ms)
{
	for (long long end = now() + ms; now() < end;)
		check();
}

static void bound(void)
{
	alarm(LIMIT);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Starts a child that computes for ever; with `traced` it asks its parent to trace it. */
static pid_t computes(int traced)
{
	pid_t child = fork();
	if (child == 0) {
		bound();
		if (traced)
			ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		for (;;) {
			burn(200);
			if (traced)
				raise(SIGUSR1);
		}
	}
	return child;
}

static void traced(void)
{
	pid_t child = computes(1);
	int status;
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
		ptrace(PTRACE_CONT, child, NULL, NULL); /* the signal is not passed on */
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}

static void seized(void)
{
	pid_t child = computes(0);
	int status;
	while (kill(child, 0) == 0) {
		/* Another tracer may have it at the moment. */
		if (ptrace(PTRACE_SEIZE, child, NULL, NULL) == 0) {
			for (int i = 0; i < 50; i++) {
				pause_ms(STEP_MS);
				ptrace(PTRACE_INTERRUPT, child, NULL, NULL);
				if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
					exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
				ptrace(PTRACE_CONT, child, NULL, NULL);
			}
			ptrace(PTRACE_INTERRUPT, child, NULL, NULL);
			waitpid(child, &status, 0);
			ptrace(PTRACE_DETACH, child, NULL, NULL);
		}
		pause_ms(20);
	}
}

static void stopped(void)
{
	pid_t child = computes(0);
	for (;;) {
		kill(child, SIGSTOP);
		pause_ms(STEP_MS);
		kill(child, SIGCONT);
		pause_ms(STEP_MS);
		int status;
		if (waitpid(child, &status, WNOHANG) == child && WIFEXITED(status))
			exit(WEXITSTATUS(status));
	}
}

static void names(char **argv)
{
	static const char *const all[] = { "\033]0;x\a", "a\nhugelift: b", "\xff\xfe) R 1", "\r\033[2J" };
	for (unsigned i = 0;; i++) {
		prctl(PR_SET_NAME, all[i % 4]);
		memcpy(argv[0], "\033[2J\n\r", 6);
		burn(100);
	}
}

static void floods(void)
{
	struct rlimit limit = { PROCESSES, PROCESSES };
	setrlimit(RLIMIT_NPROC, &limit);
	for (;;) {
		pid_t child = fork();
		if (child == 0) {
			bound();
			burn(10);
			pause_ms(500);
			_exit(0);
		}
		if (child < 0)
			pause_ms(20);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	long ms = argc > 2 ? atol(argv[2]) : 100;
	bound();
	puts("ready");
	fflush(stdout);
	if (!strcmp(mode, "exits")) {
		burn(ms);
		return 0;
	}
	if (!strcmp(mode, "execs")) {
		burn(ms);
		execv("/proc/self/exe", argv);
	}
	if (!strcmp(mode, "traced"))
		traced();
	if (!strcmp(mode, "seized"))
		seized();
	if (!strcmp(mode, "stopped"))
		stopped();
	if (!strcmp(mode, "names"))
		names(argv);
	if (!strcmp(mode, "floods"))
		floods();
	return 2;
}
