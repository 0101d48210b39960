/* SPDX-License-Identifier: Apache-2.0 */
/* Computes in its own code until that is on huge pages, or for the given CPU time. Prints both.
 *
 *   watched busy SECONDS          computes
 *   watched sleep SECONDS         sleeps instead, and uses no CPU time
 *   watched forks N SECONDS       N children compute, and the parent waits for them; then a last child looks
 *   watched leaves SECONDS        a child computes, and the parent ends after a second
 *   watched waits WHAT            waits for the end of its stdin; 'thp-off': without transparent huge pages
 *   watched strays 1              a child waits for the end of stdin, and the parent ends after a second
 *   watched opens FILE SECONDS    computes, then opens the library FILE and computes in that
 *   watched runs PROGRAM WORDS... becomes another program */
#define _GNU_SOURCE
#include "fat.h"
#include "huge_code.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static inline void wait_for_end(void)
{
	char byte;
	while (read(0, &byte, 1) > 0)
		;
}

static void show(const char *who, unsigned long huge, size_t wrong)
{
	printf("%s: huge %lu kB after %.2f s, wrong %zu\n", who, huge, cpu(), wrong);
	fflush(stdout);
}

static void busy(const char *who, double seconds)
{
	size_t wrong = 0;
	unsigned long huge;
	do {
		wrong += fat_wrong(1);
		huge = huge_code(fat_code, fat_code_end);
	} while (huge < 4096 && cpu() < seconds);
	/* Whoever makes it huge may still have to look at it. */
	if (huge >= 4096)
		usleep(300000);
	show(who, huge, wrong + fat_wrong(1));
}

#ifdef LIBRARY
void library_busy(double seconds);
void library_busy(double seconds) { busy("library", cpu() + seconds); }
#else
int main(int argc, char **argv)
{
	double seconds = atof(argv[argc - 1]);
	if (argc < 3)
		return 2;
	if (!strcmp(argv[1], "busy"))
		busy("program", seconds);
	if (!strcmp(argv[1], "sleep")) {
		usleep((useconds_t)(seconds * 1e6));
		show("program", huge_code(fat_code, fat_code_end), fat_wrong(1));
	}
	if (!strcmp(argv[1], "forks")) {
		for (int i = atoi(argv[2]); i > 0; i--)
			if (fork() == 0)
				return busy("child", seconds), 0;
		while (wait(NULL) > 0)
			;
		if (fork() == 0)
			return show("last", huge_code(fat_code, fat_code_end), fat_wrong(1)), 0;
		wait(NULL);
	}
	if (!strcmp(argv[1], "leaves")) {
		if (fork() == 0)
			return setsid(), busy("left", seconds), 0;
		sleep(1);
	}
	if (!strcmp(argv[1], "waits")) {
		if (!strcmp(argv[2], "thp-off") && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
			return 5;
		puts("ready");
		fflush(stdout);
		wait_for_end();
		show("program", huge_code(fat_code, fat_code_end), fat_wrong(1));
	}
	if (!strcmp(argv[1], "strays")) {
		if (fork() == 0)
			return setsid(), wait_for_end(), 0;
		sleep(1);
	}
	if (!strcmp(argv[1], "opens")) {
		busy("program", seconds);
		void *library = dlopen(argv[2], RTLD_NOW);
		void (*library_busy)(double) = library ? (void (*)(double))dlsym(library, "library_busy") : 0;
		if (!library_busy)
			return puts(dlerror()), 3;
		library_busy(seconds);
	}
	if (!strcmp(argv[1], "runs"))
		return execv(argv[2], argv + 2), 4;
	return 0;
}
#endif
