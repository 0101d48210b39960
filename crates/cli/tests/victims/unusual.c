/* SPDX-License-Identifier: Apache-2.0 */
/* A program like hold.c, in an unusual state:
 *   unusual headless      its first thread has ended, another one does the work
 *   unusual sealed        its code and constants are sealed (mseal(2))
 *   unusual mdwe [CMD...] memory that was not executable cannot become so (PR_SET_MDWE); it executes CMD, if there is one
 * Prints "ready", waits until stdin ends, and checks its code and constants. In each mode it seals them at an `s` on stdin,
 * and prints "sealed". Where the kernel has no such call, it prints why in place of "ready", and ends. */
#define _GNU_SOURCE
#include "fat.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

static void need(int ok)
{
	if (!ok) {
		printf("lacks: %s\n", strerror(errno));
		exit(0);
	}
}

static void seal_range(const void *start, const void *end)
{
	uintptr_t from = (uintptr_t)start & ~4095ul, to = (uintptr_t)end & ~4095ul;
	need(!syscall(SYS_mseal, from, to - from, 0));
}

static void seal(void)
{
	seal_range(fat_code, fat_code_end);
	seal_range(fat_data, fat_data_end);
}

static int work(void)
{
	char byte;
	printf("wrong %zu\nready\n", fat_wrong(1));
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		if (byte == 's') {
			seal();
			puts("sealed");
			fflush(stdout);
		}
	printf("wrong %zu\n", fat_wrong(1));
	fflush(stdout);
	return 0;
}

static void *body(void *first)
{
	pthread_join(*(pthread_t *)first, NULL);
	exit(work());
}

int main(int argc, char **argv)
{
	static pthread_t first, thread;
	const char *mode = argc > 1 ? argv[1] : "";
	if (!strcmp(mode, "headless")) {
		first = pthread_self();
		if (pthread_create(&thread, NULL, body, &first))
			return 1;
		pthread_exit(NULL);
	}
	if (!strcmp(mode, "sealed"))
		seal();
	if (!strcmp(mode, "mdwe"))
		need(!prctl(PR_SET_MDWE, 1, 0, 0, 0));
	if (argc > 2) {
		execvp(argv[2], argv + 2);
		return 127;
	}
	return work();
}
