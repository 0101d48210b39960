/* SPDX-License-Identifier: Apache-2.0 */
/* Runs under a seccomp filter until stdin ends, and checks its code and constants before and after:
 *
 *   guarded WHO ACTION CALL
 *
 * WHO is `all` (one thread), or of two threads `main`, which waits, or `worker`, which computes. ACTION is an
 * errno, `kill` or `trap`, and CALL a number or one of the names below. Prints "ready", and at the end "wrong 0". */
#define _GNU_SOURCE
#include "fat.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	const char *name;
	int number;
	unsigned argument, mask; /* the argument's bits that must be set */
} calls[] = {
	{ "acct", SYS_acct, 0, 0 },
	{ "mremap", SYS_mremap, 0, 0 },
	{ "socket", SYS_socket, 0, 0 },
	{ "restart_syscall", SYS_restart_syscall, 0, 0 },
	{ "mprotect-exec", SYS_mprotect, 2, PROT_EXEC },
};

static atomic_int ends, is_ready, wrong;
static char **arguments;

/* Puts the calling thread under the filter. */
static void filter(void)
{
	const char *name = arguments[2];
	unsigned i = 0, action;
	if (*arguments[3] >= '0' && *arguments[3] <= '9')
		calls[0].name = arguments[3], calls[0].number = atoi(arguments[3]);
	while (strcmp(calls[i].name, arguments[3]))
		if (++i == sizeof calls / sizeof *calls)
			_exit(99);
	action = !strcmp(name, "kill") ? SECCOMP_RET_KILL_PROCESS
		 : !strcmp(name, "trap") ? SECCOMP_RET_TRAP
					 : SECCOMP_RET_ERRNO | (unsigned)atoi(name);
	unsigned at = (unsigned)offsetof(struct seccomp_data, args) + 8 * calls[i].argument;
	struct sock_filter ops[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, calls[i].mask),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].mask, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof ops / sizeof *ops, ops };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(98);
}

static void *work(void *filtered)
{
	if (filtered)
		filter();
	atomic_store(&is_ready, 1);
	while (!atomic_load(&ends))
		atomic_fetch_add(&wrong, (int)fat_wrong(97));
	return NULL;
}

int main(int argc, char **argv)
{
	char byte;
	pthread_t worker;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	if (argc != 4)
		return 2;
	arguments = argv;
	int all = !strcmp(argv[1], "all"), own = all || !strcmp(argv[1], "main");
	atomic_fetch_add(&wrong, (int)fat_wrong(1));
	if (!all && pthread_create(&worker, NULL, work, own ? NULL : ""))
		return 3;
	while (!all && !atomic_load(&is_ready))
		usleep(1000);
	if (own)
		filter();
	puts("ready");
	fflush(stdout);
	/* After a stop the kernel continues a call with a timeout by restart_syscall. A filter may refuse it. */
	while (poll(&input, 1, 100000) == 0 || read(0, &byte, 1) > 0)
		;
	atomic_store(&ends, 1);
	if (!all)
		pthread_join(worker, NULL);
	printf("wrong %zu\n", (size_t)atomic_load(&wrong) + fat_wrong(1));
	return 0;
}
