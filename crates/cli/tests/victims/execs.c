/* SPDX-License-Identifier: Apache-2.0 */
/* Executes itself again as often as its argument says, each time while threads compute, start and end.
 * Exits with 0 if no sum was wrong and no call was interrupted. */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_int wrong;

static void *short_lived(void *data)
{
	atomic_fetch_add(&wrong, fat_wrong(997) != 0);
	return data;
}

static void *churn(void *data)
{
	pthread_t one;
	for (;;)
		if (pthread_create(&one, NULL, short_lived, data) || pthread_join(one, NULL))
			atomic_fetch_add(&wrong, 1);
	return data;
}

int main(int argc, char **argv)
{
	int left = argc > 1 ? atoi(argv[1]) : 0;
	char number[20];
	pthread_t thread;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t = (struct timespec){ 0, 2000000 + t.tv_nsec % 40000000 };
	if (left == 0)
		return 0;
	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, churn, NULL);
	if (nanosleep(&t, NULL) || fat_wrong(61))
		atomic_fetch_add(&wrong, 1);
	if (atomic_load(&wrong))
		return 1;
	snprintf(number, sizeof number, "%d", left - 1);
	execl("/proc/self/exe", argv[0], number, (char *)NULL);
	return 2;
}
