/* SPDX-License-Identifier: Apache-2.0 */
/* A program that lifts and restores itself ROUNDS times, while threads execute its code, a profiler's signal
 * reads what is lifted a thousand times a second, and four threads open and close shared objects OPENS times.
 * Usage: by_itself_busy ROUNDS OPENS LIBRARY... */
#define _GNU_SOURCE
#include <hugelift.h>

#include "fat.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static _Atomic int stop, wrong;
static _Atomic long samples, found, busy_reads, runs, opens;
static char **libraries;
static int library_count;
static long opens_each;

static void profile(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	struct hugelift_range range;
	const unsigned char *at = fat_code + (3 << 20);
	int code = hugelift_find(at, &range, sizeof range);
	samples++;
	if (code == 1) {
		found++;
		if ((const unsigned char *)range.start > at || (const unsigned char *)range.end <= at ||
		    range.path[0] != '/')
			wrong++;
	} else if (code != 0) {
		busy_reads++;
	}
}

static void *compute(void *none)
{
	while (!stop) {
		if (fat_wrong(977))
			wrong++;
		runs++;
	}
	return none;
}

static void *load(void *number)
{
	for (long i = 0; i < opens_each; i++) {
		void *object = dlopen(libraries[(i + (long)number) % library_count], RTLD_NOW);
		size_t (*check)(size_t) = object ? (size_t(*)(size_t))dlsym(object, "library_wrong") : NULL;
		if (!check || check(9973))
			wrong++;
		if (object)
			dlclose(object);
		opens++;
	}
	return NULL;
}

static long resident(void)
{
	long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");
	if (fscanf(statm, "%*d %ld", &pages) != 1)
		pages = -1;
	fclose(statm);
	return pages * 4;
}

static long mappings(void)
{
	long lines = 0;
	int c;
	FILE *maps = fopen("/proc/self/maps", "re");
	while ((c = getc(maps)) != EOF)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

int main(int argc, char **argv)
{
	long rounds = atol(argv[1]);
	long lifted = 0, refused = 0, first = 0, first_mappings = 0;
	opens_each = atol(argv[2]) / 4;
	libraries = argv + 3, library_count = argc - 3;
	struct sigaction action = {.sa_sigaction = profile, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGPROF, &action, NULL);
	struct itimerval every = {{0, 1000}, {0, 1000}};
	setitimer(ITIMER_PROF, &every, NULL);
	pthread_t threads[8];
	int count = 0;
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[count++], NULL, compute, NULL);
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[count++], NULL, load, (void *)i);
	struct hugelift_options options;
	hugelift_options_init(&options, sizeof options);
	options.backing = HUGELIFT_BACKING_THP;
	for (long round = 0; round < rounds; round++) {
		struct hugelift_report *report;
		int code = hugelift_lift_self(&options, &report);
		if (code == HUGELIFT_OK && hugelift_report_huge_bytes(report, HUGELIFT_PART_TEXT) >= 4 << 20)
			lifted++;
		else
			refused++;
		hugelift_report_free(report);
		if (hugelift_restore_self(NULL, NULL) != HUGELIFT_OK)
			refused++;
		if (round == rounds / 4)
			first = resident(), first_mappings = mappings();
	}
	for (int i = 2; i < count; i++)
		pthread_join(threads[i], NULL);
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	hugelift_restore_self(NULL, NULL);
	printf("lifted %ld of %ld, refused %ld, wrong %d, samples %ld, found %ld, no slot %ld, opens %ld\n", lifted,
	       rounds, refused, wrong, samples, found, busy_reads, opens);
	printf("resident %ld kB after a quarter, %ld kB at the end; mappings %ld, %ld\n", first, resident(),
	       first_mappings, mappings());
	int good = !wrong && !refused && !busy_reads && found > 0 && opens == 4 * opens_each && fat_wrong(1) == 0;
	if (resident() > first + 16 * 1024 || mappings() > first_mappings + 64)
		puts("memory grows"), good = 0;
	puts(good ? "ok" : "bad");
	return !good;
}
