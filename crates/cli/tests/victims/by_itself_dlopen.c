/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose threads fork while another lifts and restores it. Each child calls dlopen(3) and dlclose(3) at once,
 * for which it needs the locks of the loader. Usage: by_itself_dlopen CHILDREN LIBRARY */
#define _GNU_SOURCE
#include <hugelift.h>

#include "fat.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic int stop, bad, lifts;
static int children;
static const char *library;

static struct hugelift_options thp(void)
{
	struct hugelift_options options;
	hugelift_options_init(&options, sizeof options);
	options.backing = HUGELIFT_BACKING_THP;
	return options;
}

static void *lift(void *none)
{
	struct hugelift_options options = thp();
	while (!stop) {
		if (hugelift_lift_self(&options, NULL) || hugelift_restore_self(NULL, NULL))
			bad++;
		lifts++;
	}
	return none;
}

/* Forks a child that uses the loader. A child that waits for a thread which it does not have is killed. */
static void fork_one(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		alarm(20);
		void *object = dlopen(library, RTLD_NOW);
		_exit(!object || dlclose(object));
	}
	waitpid(pid, &status, 0);
	if (pid < 0 || status) {
		printf("child: status %x\n", status);
		bad++;
	}
}

static void *forks(void *none)
{
	for (int i = 0; i < children && !bad; i++)
		fork_one();
	return none;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	children = atoi(argv[1]), library = argv[2];
	pthread_t lifter, forkers[3];
	pthread_create(&lifter, NULL, lift, NULL);
	for (int i = 0; i < 3; i++)
		pthread_create(&forkers[i], NULL, forks, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(forkers[i], NULL);
	stop = 1;
	pthread_join(lifter, NULL);
	printf("%d lifts\n", lifts);
	if (lifts < 3 || fat_wrong(64))
		bad++;
	puts(bad ? "bad" : "ok");
	return bad != 0;
}
