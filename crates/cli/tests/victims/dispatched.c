/* SPDX-License-Identifier: Apache-2.0 */
/* Has its system calls dispatched to itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), as Wine does:
 *
 *   dispatched WHO
 *
 * WHO is `all` (both threads), `computing` (both, and the second computes), `main` (the first alone), or `loading` (the first, from a constructor of a shared object on).
 * Calls from the C library reach the kernel, all others raise SIGSYS. Prints "ready". At the end of its stdin it makes
 * one call from elsewhere in each of these threads, and prints how many SIGSYS came before, how many of these calls came,
 * and what was wrong with its code: "foreign 0 own 2 wrong 0". */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef LIBRARY
#include "fat.h"
#endif
#ifdef WITH_DATA
unsigned char written[6 << 20] = { 1 };
#endif

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

static atomic_int caught, is_ready, ends;
static volatile char blocks = 1; /* SYSCALL_DISPATCH_FILTER_BLOCK */

static void handle(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	atomic_fetch_add(&caught, 1);
}

/* Has calls of this thread dispatched that do not come from the code of the C library. Returns 0 if it can. */
static int dispatch(void)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
	uintptr_t call = (uintptr_t)&syscall, from, to;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	if (!maps || sigaction(SIGSYS, &action, NULL))
		return 1;
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%zx-%zx", &from, &to) == 2 && from <= call && call < to)
			break;
	fclose(maps);
	return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, from, to - from, &blocks);
}

#ifdef LIBRARY

int dispatched_in_library(void)
{
	return atomic_load(&caught);
}

__attribute__((constructor)) static void load(void)
{
	if (getenv("DISPATCHES") && dispatch())
		_exit(77);
}

#else

__attribute__((weak)) int dispatched_in_library(void);

/* Makes a call from here. The thread goes on with the number in the register of the result. */
static void call_from_here(void)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_getppid) : "rcx", "r11", "memory");
}

static int computes;
static size_t wrong;

static void *work(void *dispatches)
{
	if (dispatches && dispatch())
		_exit(77);
	atomic_store(&is_ready, 1);
	while (!atomic_load(&ends))
		if (computes)
			wrong += fat_wrong(97);
		else
			usleep(1000);
	if (dispatches)
		call_from_here();
	return NULL;
}

int main(int argc, char **argv)
{
	char byte;
	pthread_t worker;
	if (argc != 2)
		return 2;
	computes = !strcmp(argv[1], "computing");
	int all = computes || !strcmp(argv[1], "all"), loading = !strcmp(argv[1], "loading");
	if (pthread_create(&worker, NULL, work, all ? "" : NULL))
		return 3;
	while (!atomic_load(&is_ready))
		usleep(1000);
	if (!loading && dispatch())
		return 77;
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	int foreign = loading ? dispatched_in_library() : atomic_load(&caught);
	atomic_store(&ends, 1);
	pthread_join(worker, NULL);
	call_from_here();
	int own = (loading ? dispatched_in_library() : atomic_load(&caught)) - foreign;
	printf("foreign %d own %d wrong %zu\n", foreign, own, wrong + fat_wrong(1));
	return 0;
}
#endif
