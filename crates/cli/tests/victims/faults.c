/* SPDX-License-Identifier: Apache-2.0 */
/* Writes to PAGES fresh pages of the base size: itself, in a child, in a thread that it
 * starts when its stdin ends ("later"), or in four threads that it starts before ("threads"). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t pages;

static void *touch(void *unused)
{
	(void)unused;
	size_t size = sysconf(_SC_PAGESIZE);
	char *at = mmap(NULL, pages * size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(2);
	madvise(at, pages * size + 1, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages; i++)
		at[i * size] = 1;
	return NULL;
}

static void until_end(void)
{
	char byte;
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
}

/* The first thread reads stdin; the four wait for it here. */
static pthread_barrier_t barrier;

static void *wait_and_touch(void *unused)
{
	pthread_barrier_wait(&barrier);
	return touch(unused);
}

int main(int argc, char **argv)
{
	pthread_t thread[4];
	if (argc < 3)
		return 1;
	pages = strtoul(argv[2], NULL, 10);
	if (!strcmp(argv[1], "self")) {
		touch(NULL);
	} else if (!strcmp(argv[1], "child")) {
		if (!fork()) {
			touch(NULL);
			return 0;
		}
		wait(NULL);
	} else if (!strcmp(argv[1], "threads")) {
		pthread_barrier_init(&barrier, NULL, 5);
		for (int i = 0; i < 4; i++)
			pthread_create(&thread[i], NULL, wait_and_touch, NULL);
		until_end();
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
	} else {
		until_end();
		pthread_create(&thread[0], NULL, touch, NULL);
		pthread_join(thread[0], NULL);
	}
	return 0;
}
