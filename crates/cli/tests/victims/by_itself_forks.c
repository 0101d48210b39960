/* SPDX-License-Identifier: Apache-2.0 */
/* A program that forks 40 times while one thread lifts and restores it and others read what is lifted. Each child, in
 * which those threads do not exist, must be able to lift itself. */
#include <hugelift.h>

#include "fat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic int stop;

static struct hugelift_options thp(void)
{
	struct hugelift_options options;
	hugelift_options_init(&options, sizeof options);
	options.backing = HUGELIFT_BACKING_THP;
	return options;
}

/* How many times the thread has lifted the code. */
static _Atomic int lifts;

static void *lift(void *none)
{
	struct hugelift_options options = thp();
	while (!stop) {
		if (!hugelift_lift_self(&options, NULL) && hugelift_find(fat_code + (3 << 20), NULL, 0) == 1)
			lifts++;
		hugelift_restore_self(NULL, NULL);
	}
	return none;
}

static void *read_ranges(void *none)
{
	struct hugelift_range range;
	while (!stop)
		hugelift_find(fat_code + (3 << 20), &range, sizeof range);
	return none;
}

int main(void)
{
	pthread_t threads[4];
	int bad = 0, status;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, i ? read_ranges : lift, NULL);
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			struct hugelift_options options = thp();
			/* A child that waits for a thread which it does not have is killed. */
			alarm(30);
			_exit(hugelift_lift_self(&options, NULL) || hugelift_restore_self(NULL, NULL) || fat_wrong(64));
		}
		status = -1;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			printf("child %d: pid %d, status %x\n", i, pid, status), bad = 1;
	}
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	if (lifts < 3)
		printf("the thread has lifted the code %d times\n", lifts), bad = 1;
	puts(bad ? "bad" : "ok");
	return bad;
}
