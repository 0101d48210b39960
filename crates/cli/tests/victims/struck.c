/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for the end of its stdin, while others send it signals or, with a socket, have it unmap code:
 *
 *   struck [SOCKET]
 *
 * Counts signals, each of which must come with its own number as its value. For each byte from the socket a second thread
 * unmaps the vdso, and answers. Prints "ready", and at the end how often each signal came, and what was wrong:
 * "11 1 31 0 wrong 0". At the end it raises SIGSEGV and SIGSYS once more by itself, which its handlers must get. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "fat.h"

static int signals[7];
static volatile int counts[65], wrong, leaps;
static sigjmp_buf back;
static char *volatile nowhere;

static void handle(int signal, siginfo_t *info, void *context)
{
	(void)context;
	counts[signal]++;
	if (leaps)
		siglongjmp(back, 1);
	if (info->si_code != SI_QUEUE || info->si_value.sival_int != signal)
		wrong++;
}

static void *unmap(void *socket)
{
	int fd = *(int *)socket;
	char byte, line[512];
	/* A wait that hugelift does not stop. */
	while (recv(fd, &byte, 1, MSG_WAITALL) == 1) {
		uintptr_t from, to;
		FILE *maps = fopen("/proc/self/maps", "r");
		while (maps && fgets(line, sizeof line, maps))
			if (strstr(line, "[vdso]") && sscanf(line, "%zx-%zx", &from, &to) == 2)
				munmap((void *)from, to - from);
		if (maps)
			fclose(maps);
		if (send(fd, &byte, 1, 0) != 1)
			break;
	}
	return NULL;
}

/* Does what raises a signal; its handler leaps back. */
static void raises(int signal)
{
	int before = counts[signal];
	leaps = 1;
	if (!sigsetjmp(back, 1)) {
		if (signal == SIGSEGV)
			*nowhere = 1;
		else
			raise(signal);
	}
	leaps = 0;
	wrong += counts[signal] != before + 1;
	counts[signal] = before;
}

int main(int argc, char **argv)
{
	char byte;
	int fd = -1;
	pthread_t other;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
	int all[7] = { SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGSYS, SIGUSR1, SIGRTMIN };
	memcpy(signals, all, sizeof all);
	for (int i = 0; i < 7; i++)
		sigaction(signals[i], &action, NULL);
	if (argc > 1) {
		struct sockaddr_un to = { .sun_family = AF_UNIX };
		strncpy(to.sun_path, argv[1], sizeof to.sun_path - 1);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&to, sizeof to) || pthread_create(&other, NULL, unmap, &fd))
			return 3;
	}
	puts("ready");
	fflush(stdout);
	while (poll(&input, 1, -1) < 0 ? errno == EINTR : read(0, &byte, 1) > 0)
		;
	raises(SIGSEGV);
	raises(SIGSYS);
	for (int i = 0; i < 7; i++)
		printf("%d ", counts[signals[i]]);
	printf("wrong %zu\n", (size_t)wrong + fat_wrong(1));
	fflush(stdout);
	_exit(0);
}
