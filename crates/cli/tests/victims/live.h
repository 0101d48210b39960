/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of live.c share: their state, errors, and timeouts measured against a control. */
#ifndef LIVE_H
#define LIVE_H
#include "fat.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The real-time signals, each with one use. */
#define ORDERED (SIGRTMIN)	/* sent to one thread, with a number that counts up */
#define ANYONE (SIGRTMIN + 1)	/* sent to the process; either `sums` thread takes it */
#define TICK (SIGRTMIN + 2)	/* from a timer, to one thread */
#define STACK (SIGRTMIN + 3)	/* handled on an alternate stack */
#define WAITED (SIGRTMIN + 4)	/* blocked in all threads, taken by sigwaitinfo */
#define ENDS (SIGRTMIN + 5)	/* its handler ends the system call that it interrupts */

enum { PATTERN = 0x5a, MAX_WORKERS = 40, MS = 1000000 };

struct worker;
struct kind {
	const char *name;
	void (*step)(struct worker *);
	int count; /* threads that make these steps only */
};

/* What a thread waits for, without a timeout, until the poker thread ends its wait. */
enum want { NOTHING, EVENT, SEMAPHORE, PIPE, SIGNAL, END };

struct worker {
	const struct kind *kind;
	pthread_t thread;
	pid_t tid;
	int index, event, epoll, pipe[2], socket[2];
	unsigned seed;
	uint64_t steps;
	atomic_int want, handled, ended;
	atomic_long want_call, since; /* number of the system call to be ended; when it was wanted */
	unsigned char *stack, *heap_stack;
	void *contexts;
	size_t below;
	uint32_t pokes;
};

static struct worker workers[MAX_WORKERS];
static int semaphores;
static atomic_int stop;

static inline int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline struct timespec spec(int64_t ns)
{
	return (struct timespec){ ns / 1000000000, ns % 1000000000 };
}

static inline unsigned chance(struct worker *w, unsigned below)
{
	return (unsigned)rand_r(&w->seed) % below;
}

/* Counts an error, and keeps the first ones for the report. Not for small stacks. */
static void wrong(const char *where, const char *what, long value);

/* Compares what a system call returned with what it must return. */
static void returned(const char *call, long got, long error, long want, long want_error);

/* Checks how long a call took whose timeout was `timeout`. One that ends too early is an error. One that
 * ends late is an error only if the control thread ran on time meanwhile, as a busy machine wakes any
 * thread late. `coarse` is how much the kernel may round. */
static int64_t queued(void);
static void timed(const char *call, int64_t began, int64_t queued, int64_t timeout, int64_t coarse);

/* Returns a random timeout in ns; every fourth is long, so that a stop is likely to fall into it. */
static inline int64_t some_time(struct worker *w)
{
	return chance(w, 4) ? (1 + chance(w, 30)) * MS / 2 : (100 + (int64_t)chance(w, 300)) * MS;
}

/* Asks the poker to end the next wait. The call then must have been ended by it. */
static inline void want(struct worker *w, enum want what)
{
	atomic_store(&w->want, what);
}

static inline void got(struct worker *w, const char *call)
{
	if (atomic_load(&w->want) != NOTHING)
		wrong(call, "returned before anything had happened", 0);
}

#endif
