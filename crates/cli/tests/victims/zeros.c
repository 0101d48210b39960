/* SPDX-License-Identifier: Apache-2.0 */
/* Has 8 MB of private memory of each kind on huge pages, of which little holds data, and checks all of it at the end.
 *
 *   zeros [quiet | waits | headless]
 *
 * With `waits` it waits in vfork(2) once it is ready. With `headless` its first thread ends then, and another goes on.
 *
 *   sparse   three base pages of each huge page are in use: a thread counts in them, unless it is quiet, and one word is written
 *            anew all the time, where zeros were
 *   half     the first half of each huge page holds data
 *   locked   in memory (mlock)
 *   forked   a child has it too
 *   pinned   the last base page of each huge page lies in a pipe (vmsplice): a reader of the pipe gets what is written to it
 *   cleared  all of it held data, and was cleared
 *
 * Prints a line "KIND START BYTES" for each, and "ready"; ends when standard input does, and says "as it should be". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE (2ul << 20)
#define BYTES (4 * HUGE)
#define PAGE 4096ul
#define COLLAPSE 25

static const char *const names[] = { "sparse", "half", "locked", "forked", "pinned", "cleared" };
enum { SPARSE, HALF, LOCKED, FORKED, PINNED, CLEARED, KINDS };
static const unsigned long used[] = { 0, 77, 400 };

static unsigned char *at[KINDS];
static volatile int ends;
static uint64_t turns;
static int quiet, pipes[2];
static pid_t child;
static pthread_t thread;

static void die(const char *what)
{
	perror(what);
	exit(3);
}

static unsigned char *memory(void)
{
	unsigned char *p = mmap(0, BYTES + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	p = (unsigned char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	if (madvise(p, BYTES, MADV_HUGEPAGE))
		die("madvise");
	return p;
}

static volatile uint64_t *word(unsigned long page, int use)
{
	return (volatile uint64_t *)(at[SPARSE] + page * HUGE + used[use] * PAGE);
}

/* The number of the base page that is written anew in a turn: one that held zeros. */
static unsigned long anew(uint64_t turn)
{
	return 1 + turn % 70;
}

static void *count(void *quiet)
{
	while (!ends) {
		for (unsigned long page = 0; page < BYTES / HUGE; page++) {
			for (int use = 0; use < 3; use++)
				++*word(page, use);
			volatile uint64_t *other = (void *)(at[SPARSE] + page * HUGE + anew(turns) * PAGE);
			*other = turns + 1;
			if (*other != turns + 1)
				die("a write was lost");
			*other = 0;
		}
		turns++;
		if (quiet)
			break;
	}
	return quiet;
}

static int is_filled(const unsigned char *p, unsigned long bytes, unsigned char with)
{
	for (unsigned long i = 0; i < bytes; i++)
		if (p[i] != with)
			return 0;
	return 1;
}

/* Checks memory of which the first bytes of each huge page hold `with`, and all else is zero. */
static void check(int kind, unsigned long first, unsigned char with)
{
	for (unsigned long page = 0; page < BYTES / HUGE; page++) {
		unsigned char *p = at[kind] + page * HUGE;
		if (!is_filled(p, first, with) || !is_filled(p + first, HUGE - first, 0)) {
			printf("%s has changed\n", names[kind]);
			exit(1);
		}
	}
}

static void check_sparse(void)
{
	for (unsigned long page = 0; page < BYTES / HUGE; page++)
		for (int use = 0; use < 3; use++) {
			if (*word(page, use) != turns)
				die("a count is wrong");
			*word(page, use) = 0;
		}
	check(SPARSE, 0, 0);
}

/* Waits for the end of standard input, and checks all. */
static void *finish(void *first)
{
	while (getchar() != EOF) {
	}
	ends = 1;
	if (!quiet)
		pthread_join(thread, NULL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	check_sparse();
	check(HALF, HUGE / 2, 3);
	check(LOCKED, PAGE, 3);
	check(FORKED, PAGE, 3);
	check(CLEARED, 0, 0);
	/* The pages in the pipe are still the process's: what it writes now is read. */
	for (unsigned long page = 0; page < BYTES / HUGE; page++)
		memset(at[PINNED] + page * HUGE + HUGE - PAGE, 5, PAGE);
	for (unsigned long page = 0; page < BYTES / HUGE; page++) {
		unsigned char bytes[PAGE];
		if (read(pipes[0], bytes, PAGE) != (long)PAGE || !is_filled(bytes, PAGE, 5))
			die("the pipe has other bytes");
		memset(at[PINNED] + page * HUGE + HUGE - PAGE, 0, PAGE);
	}
	check(PINNED, PAGE, 3);
	printf("as it should be\n");
	exit(0);
	return first;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	quiet = argc > 1 && strcmp(mode, "headless");
	for (int kind = 0; kind < KINDS; kind++) {
		at[kind] = memory();
		memset(at[kind], 9, BYTES);
		/* A fault may have found no huge page. */
		for (int tries = 0; madvise(at[kind], BYTES, COLLAPSE) && tries < 100; tries++)
			usleep(10000);
		memset(at[kind], 0, BYTES);
		for (unsigned long page = 0; page < BYTES / HUGE; page++) {
			if (kind == HALF)
				memset(at[kind] + page * HUGE, 3, HUGE / 2);
			else if (kind != SPARSE && kind != CLEARED)
				memset(at[kind] + page * HUGE, 3, PAGE);
		}
	}
	if (mlock(at[LOCKED], BYTES) || pipe2(pipes, O_CLOEXEC))
		die("mlock or pipe2");
	for (unsigned long page = 0; page < BYTES / HUGE; page++) {
		struct iovec last = { at[PINNED] + page * HUGE + HUGE - PAGE, PAGE };
		if (vmsplice(pipes[1], &last, 1, 0) != (long)PAGE)
			die("vmsplice");
	}
	/* No other memory is the child's too. */
	for (int kind = 0; kind < KINDS; kind++)
		if (kind != FORKED && madvise(at[kind], BYTES, MADV_DONTFORK))
			die("madvise(MADV_DONTFORK)");
	/* khugepaged joins nothing of it meanwhile. What is huge stays so. */
	for (int kind = 0; kind < KINDS; kind++)
		if (madvise(at[kind], BYTES, MADV_NOHUGEPAGE))
			die("madvise(MADV_NOHUGEPAGE)");
	child = fork();
	if (!child) {
		pause();
		_exit(0);
	}
	if (pthread_create(&thread, NULL, count, quiet ? argv : NULL))
		die("pthread_create");
	if (quiet)
		pthread_join(thread, NULL);
	for (int kind = 0; kind < KINDS; kind++)
		printf("%s %lx %lx\n", names[kind], (unsigned long)at[kind], BYTES);
	printf("ready\n");
	fflush(stdout);
	if (!strcmp(mode, "headless")) {
		static pthread_t other;
		if (pthread_create(&other, NULL, finish, NULL))
			die("pthread_create");
		pthread_exit(NULL);
	}
	if (!strcmp(mode, "waits") && !vfork()) {
		pause();
		_exit(0);
	}
	finish(NULL);
}
