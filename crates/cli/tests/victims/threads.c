/* SPDX-License-Identifier: Apache-2.0 */
/* Threads (eight, unless THREADS is set) that run the lifted code without a pause, started before main() and,
 * for a dynamic program, before its entry point (in a shared object's constructor).
 * Build with -DLIBRARY for the object, else for the program. */
#define _GNU_SOURCE
#include "fat.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef THREADS
#define THREADS 8
#endif
#ifndef STRIDE
#define STRIDE 61
#endif
#if defined LIBRARY || defined WHOLE
static pthread_t threads[THREADS];
static atomic_int stop, rounds[THREADS];
static atomic_size_t wrong;
atomic_int ticks;

static void *busy(void *arg)
{
	size_t number = (size_t)arg;
	while (!atomic_load(&stop)) {
		atomic_fetch_add(&wrong, fat_wrong(STRIDE + number));
		atomic_fetch_add(&rounds[number], 1);
	}
	return NULL;
}

static void tick(int signal)
{
	(void)signal;
	atomic_fetch_add(&ticks, 1);
}

__attribute__((constructor)) static void start(void)
{
	/* A timer that fires all through the lift. */
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	struct itimerval each = { { 0, 1000 }, { 0, 1000 } };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &each, NULL);
	for (size_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, busy, (void *)i);
	struct timespec pause = { 0, 20000000 };
	nanosleep(&pause, NULL);
}

/* Whether every thread still makes progress and the timer still fires; ends them. */
int finish(void)
{
	int before[THREADS], alive = 0, ticked = atomic_load(&ticks);
	for (int i = 0; i < THREADS; i++)
		before[i] = atomic_load(&rounds[i]);
	for (int patience = 0; patience < 20000; patience++) {
		alive = 0;
		for (int i = 0; i < THREADS; i++)
			alive += atomic_load(&rounds[i]) > before[i] + 1;
		if (alive == THREADS && atomic_load(&ticks) > ticked + 5)
			break;
		usleep(1000);
	}
	struct itimerval off = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &off, NULL);
	atomic_store(&stop, 1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("alive %d, wrong %zu, timer %s\n", alive, atomic_load(&wrong),
	       atomic_load(&ticks) > ticked + 5 ? "fires" : "STOPPED");
	return alive == THREADS && !atomic_load(&wrong) ? 0 : 1;
}
#endif
#ifndef LIBRARY
int finish(void);

int main(void)
{
	printf("wrong %zu\n", fat_wrong(1));
	return finish();
}
#endif
