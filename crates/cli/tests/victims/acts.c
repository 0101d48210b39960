/* SPDX-License-Identifier: Apache-2.0 */
/* Does to its own memory what a signal tells it, and answers with a line. hugelift can borrow its first thread alone:
 * the other one waits with a timeout that a stop would make begin anew.
 *
 *   SIGRTMIN      maps pieces of memory, from the signal's value on if they fit there, and fills them
 *   SIGRTMIN + 1  makes its code writable
 *   SIGRTMIN + 2  makes its code writable, writes to it, and makes it read-only again
 *   SIGRTMIN + 3  checks all that it has done, and writes to its code if it has made that writable
 *   SIGUSR1       the first thread cannot be borrowed either, until SIGUSR2 */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 20, PIECE = 256 << 10, PAGE = 4096 };

static unsigned char *pieces[PIECES];
static int is_writable, marks;
static uintptr_t segment, segment_end;

static void nothing_else(const sigset_t *set, siginfo_t *info)
{
	struct timespec long_time = { 1000, 0 };
	while (sigtimedwait(set, info, &long_time) < 0)
		;
}

static void hold(int signal)
{
	sigset_t set;
	siginfo_t info;
	(void)signal;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	nothing_else(&set, &info);
}

/* The pages that hold the functions of fat.h alone. */
static unsigned char *code(void)
{
	return (unsigned char *)(((uintptr_t)fat_code + PAGE - 1) & -(uintptr_t)PAGE);
}

static size_t code_bytes(void)
{
	return ((uintptr_t)fat_code_end & -(uintptr_t)PAGE) - (uintptr_t)code();
}

/* Finds all that was mapped with them at the start: a mapping whose protection changes as a whole has the same addresses
 * and the same file afterwards. */
static void find_segment(void)
{
	char line[512];
	unsigned long from, to;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (uintptr_t)code() && (uintptr_t)code() < to)
			segment = from, segment_end = to;
	fclose(maps);
}

/* The last byte of each page is behind a function. */
static unsigned char *mark(size_t page)
{
	return code() + page * PAGE + PAGE - 1;
}

static int protect(int prot)
{
	return mprotect((void *)segment, segment_end - segment, prot) ? errno : 0;
}

static void write_marks(void)
{
	marks++;
	for (size_t page = 0; page < code_bytes() / PAGE; page++)
		*mark(page) = (unsigned char)marks;
}

/* Returns how many pages of its code are not writable. */
static size_t not_writable(void)
{
	char line[512];
	unsigned long from, to;
	char prot[5];
	size_t bytes = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, prot) != 3 || prot[1] == 'w')
			continue;
		from = from < segment ? segment : from;
		to = to > segment_end ? segment_end : to;
		bytes += from < to ? to - from : 0;
	}
	fclose(maps);
	return bytes / PAGE;
}

static void map(unsigned char *at)
{
	int there = 0;
	for (int i = 0; i < PIECES; i++) {
		unsigned char *want = at ? at + (size_t)i * PIECE : NULL;
		pieces[i] = mmap(want, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		there += pieces[i] == want;
		memset(pieces[i], i + 1, PIECE);
	}
	printf("mapped %d\n", there);
}

static void check(void)
{
	size_t lost = is_writable ? not_writable() : 0, wrong = fat_wrong(1), unmarked = 0;
	for (int i = 0; i < PIECES && pieces[i]; i++)
		for (size_t k = 0; k < PIECE; k++)
			wrong += pieces[i][k] != i + 1;
	if (is_writable && !lost)
		write_marks();
	for (size_t page = 0; marks && page < code_bytes() / PAGE; page++)
		unmarked += *mark(page) != (unsigned char)marks;
	printf("wrong %zu lost %zu unmarked %zu\n", wrong, lost, unmarked);
}

static void *act(void *set)
{
	siginfo_t info;
	for (;;) {
		nothing_else(set, &info);
		if (info.si_signo == SIGRTMIN)
			map(info.si_value.sival_ptr);
		else if (info.si_signo == SIGRTMIN + 1) {
			is_writable = 1;
			printf("writable %d\n", protect(PROT_READ | PROT_WRITE | PROT_EXEC));
		} else if (info.si_signo == SIGRTMIN + 2) {
			int failed = protect(PROT_READ | PROT_WRITE | PROT_EXEC);
			if (!failed)
				write_marks();
			printf("written %d\n", failed ? failed : protect(PROT_READ | PROT_EXEC));
		} else
			check();
		fflush(stdout);
	}
	return NULL;
}

int main(void)
{
	static sigset_t acts;
	pthread_t thread;
	struct sigaction held = { .sa_handler = hold };
	find_segment();
	sigemptyset(&acts);
	for (int i = 0; i < 4; i++)
		sigaddset(&acts, SIGRTMIN + i);
	sigset_t blocked = acts;
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGUSR2);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	pthread_create(&thread, NULL, act, &acts);
	sigaction(SIGUSR1, &held, NULL);
	sigset_t first;
	sigemptyset(&first);
	sigaddset(&first, SIGUSR1);
	sigprocmask(SIG_UNBLOCK, &first, NULL);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
