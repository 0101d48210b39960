/* SPDX-License-Identifier: Apache-2.0 */
/* vm_wait CALL: prints "ready" and waits in one system call, or computes, while another process lifts it.
 * "anon" maps memory first, and counts its wrong words too. "parent" starts another vm_wait that computes, and waits
 * for its end.
 * SIGUSR1 has a handler with SA_RESTART, SIGUSR2 one without. Then prints what the call returned, errno, the
 * milliseconds that it took, how many signals were handled, and how many of its functions and constants are
 * wrong. */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

static long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

enum { WORDS = 2 << 20 };

/* On small pages, also where each program gets transparent huge pages. */
static uint64_t *mapped(void)
{
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	uint64_t *words = mmap(NULL, WORDS * sizeof *words, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; words != MAP_FAILED && i < WORDS; i++)
		words[i] = i * 0x9e3779b97f4a7c15;
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	return words;
}

static size_t wrong_words(const uint64_t *words)
{
	size_t wrong = 0;
	for (size_t i = 0; words && i < WORDS; i++)
		wrong += words[i] != i * 0x9e3779b97f4a7c15;
	return wrong;
}

static int parent(char *program)
{
	int status = -1;
	pid_t child = fork();
	if (child == 0) {
		execl(program, program, "compute", NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

int main(int argc, char **argv)
{
	const char *call = argc > 1 ? argv[1] : "";
	long seconds = argc > 2 ? atol(argv[2]) : 0, result = 0;
	struct timespec t = { seconds, 0 };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct pollfd in = { .fd = 0, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0);
	uint32_t word = 1;
	size_t wrong = 0;
	sigset_t none;
	char byte;
	uint64_t *words = NULL;
	if (!strcmp(call, "parent"))
		return parent(argv[0]);
	if (!strcmp(call, "anon") && (words = mapped()) == MAP_FAILED)
		return 125;
	sigemptyset(&none);
	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags = 0;
	sigaction(SIGUSR2, &action, NULL);
	epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
	puts("ready");
	fflush(stdout);
	long began = now_ms();
	errno = 0;
	if (!strcmp(call, "nanosleep"))
		result = syscall(SYS_nanosleep, &t, NULL);
	else if (!strcmp(call, "futex"))
		result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &t, NULL, 0);
	else if (!strcmp(call, "ppoll"))
		result = ppoll(NULL, 0, &t, NULL);
	else if (!strcmp(call, "poll"))
		result = ppoll(&in, 1, NULL, NULL);
	else if (!strcmp(call, "read") || words)
		result = read(0, &byte, 1);
	else if (!strcmp(call, "epoll"))
		result = epoll_pwait(epoll, &event, 1, -1, NULL);
	else if (!strcmp(call, "suspend"))
		result = sigsuspend(&none);
	else
		while (ppoll(&in, 1, &(struct timespec){ 0, 0 }, NULL) == 0)
			wrong += fat_wrong(100);
	int error = result < 0 ? errno : 0;
	long took = now_ms() - began;
	wrong += fat_wrong(10) + wrong_words(words);
	printf("%ld %d %ld %d %zu\n", result, error, took, (int)handled, wrong);
	return 0;
}
