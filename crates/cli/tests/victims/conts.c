/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the SIGCONTs that arrive from the program's entry point on. The object (-DLIBRARY), whose constructor runs
 * before, handles them; with -DBLOCKED it blocks them until main. Prints the bytes at the end of the vdso that are not
 * zero, too: a tracer may have left code there. */
#define _GNU_SOURCE
#include "fat.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef LIBRARY
static atomic_int conts;
static void on_cont(int n) { (void)n; atomic_fetch_add(&conts, 1); }
int conts_seen(void) { return atomic_load(&conts); }

__attribute__((constructor)) static void start(void)
{
	struct sigaction one = { .sa_handler = on_cont, .sa_flags = SA_RESTART };
	sigset_t set;
	sigaction(SIGCONT, &one, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
#ifdef BLOCKED
	sigprocmask(SIG_BLOCK, &set, NULL);
#endif
}
#else
int conts_seen(void);

int main(void)
{
	sigset_t set;
	char line[4096];
	size_t used = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	usleep(20000);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		unsigned long begin, end;
		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &begin, &end) == 2)
			for (const unsigned char *p = (const unsigned char *)end - 128; p < (const unsigned char *)end; p++)
				used += *p != 0;
	}
	fclose(maps);
	printf("conts %d, vdso %zu, wrong %zu\n", conts_seen(), used, fat_wrong(16));
	return 0;
}
#endif
