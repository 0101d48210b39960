/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the SIGCONTs that arrive from the program's entry point on. The object (-DLIBRARY), whose constructor runs
 * before, handles them; with -DBLOCKED it blocks them until main. With -DSTOPS a child of the constructor stops the
 * process by SIGTSTP and continues it, all the time from before the entry point to main, and a thread of the
 * constructor lives; with -DHELD also, the first thread blocks SIGTSTP.
 *
 * Prints who traces it, and the bytes at the end of the vdso that are not zero: a tracer may have left code there. */
#define _GNU_SOURCE
#include "fat.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
static atomic_int conts;
static pid_t sender;
/* Shared with the sender: it is to end, after a SIGCONT. */
static atomic_int *enough;
static void on_cont(int n) { (void)n; atomic_fetch_add(&conts, 1); }

/* The number of SIGCONTs so far, once nobody sends any; a sender sends many. */
int conts_seen(void)
{
	int status;
	if (!sender)
		return atomic_load(&conts);
	/* On a busy machine the sender may have had no CPU so far. */
	for (int i = 0; atomic_load(&conts) == 0 && i < 30000; i++)
		usleep(1000);
	atomic_store(enough, 1);
	while (waitpid(sender, &status, 0) < 0)
		;
	return atomic_load(&conts) > 0 ? 0 : -1;
}

static void *live(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

__attribute__((constructor)) static void start(void)
{
	struct sigaction one = { .sa_handler = on_cont, .sa_flags = SA_RESTART };
	sigset_t set;
	pthread_t thread;
	sigaction(SIGCONT, &one, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
#ifdef BLOCKED
	sigprocmask(SIG_BLOCK, &set, NULL);
#endif
#ifdef STOPS
	pid_t target = getpid();
	pthread_create(&thread, NULL, live, NULL);
	enough = mmap(NULL, sizeof *enough, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sender = fork();
	for (int i = 0; sender == 0; i++) {
		if (atomic_load(enough) || kill(target, SIGTSTP))
			_exit(0);
		for (volatile int spin = 0; spin < i % 64 * 100; spin++)
			;
		kill(target, SIGCONT);
		for (volatile int spin = 0; spin < i % 61 * 300; spin++)
			;
	}
#endif
#ifdef HELD
	sigemptyset(&set);
	sigaddset(&set, SIGTSTP);
	sigprocmask(SIG_BLOCK, &set, NULL);
#endif
	(void)live, (void)thread;
}
#else
int conts_seen(void);

int main(void)
{
	sigset_t set;
	char line[4096];
	int tracer = -1;
	size_t used = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	usleep(20000);
	int conts = conts_seen();
	FILE *status = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, status))
		sscanf(line, "TracerPid: %d", &tracer);
	fclose(status);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		unsigned long begin, end;
		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &begin, &end) == 2)
			for (const unsigned char *p = (const unsigned char *)end - 128; p < (const unsigned char *)end; p++)
				used += *p != 0;
	}
	fclose(maps);
	printf("conts %d, tracer %d, vdso %zu, wrong %zu\n", conts, tracer, used, fat_wrong(16));
	return 0;
}
#endif
