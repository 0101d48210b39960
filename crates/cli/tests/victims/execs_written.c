/* SPDX-License-Identifier: Apache-2.0 */
/* execs_written N MS: checks 6 MB of .data, starts threads that write there and wait, and after MS to MS + 30
 * milliseconds one of them replaces the program by `execs_written N-1 MS`. At 0 it prints "done" and how many words were
 * wrong in this last program; an earlier one ends with status 1 if one is wrong. */
#define _GNU_SOURCE
#include "fat.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__asm__(".pushsection .data\n"
        ".balign 64\n"
        ".hidden words\nwords:\n.incbin \"" FAT_DATA "\"\n"
        ".hidden words_end\nwords_end:\n"
        ".popsection\n");
extern volatile uint32_t words[] __attribute__((visibility("hidden")));
extern volatile uint32_t words_end[] __attribute__((visibility("hidden")));

static long n;
static char **args;

static long wrong(void)
{
	long bad = 0;
	for (ptrdiff_t i = 0; i < words_end - words; i++)
		bad += words[i] != fat_value((uint32_t)i);
	return bad;
}

static void *writes(void *arg)
{
	(void)arg;
	for (unsigned i = 0;; i += 4099)
		words[i % (unsigned)(words_end - words)]++;
	return NULL;
}

static void *waits(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void *replaces(void *arg)
{
	char number[20];
	long ms = atol(args[2]) + n * 7 % 31;
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	(void)arg;
	nanosleep(&t, NULL);
	snprintf(number, sizeof number, "%ld", n - 1);
	execl("/proc/self/exe", args[0], number, args[2], (char *)NULL);
	_exit(2);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	if (argc != 3)
		return 2;
	n = atol(argv[1]);
	args = argv;
	if (n <= 0)
		return printf("done, %ld wrong\n", wrong()) < 0;
	if (wrong())
		return 1;
	for (int i = 0; i < 4; i++)
		pthread_create(&thread, NULL, i % 2 ? writes : waits, NULL);
	pthread_create(&thread, NULL, replaces, NULL);
	for (;;)
		pause();
}
