/* SPDX-License-Identifier: Apache-2.0 */
/* Has a thread that can be borrowed, and gives its number to another process when it is told to:
 *
 *   reused SOCKET
 *
 * The first thread waits for a byte from the socket, in a call that hugelift does not stop. It then ends the other thread,
 * makes a process with the number of that thread, and answers; with '-' if the number is not free. That process waits until its pipe is closed. Prints "ready",
 * and at the end of its stdin how that process has ended (wait(2)): "0", or "none" if there was none. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "fat.h"

static int ends[2], lives[2];
static volatile pid_t thread_number;

static void *wait_for_the_end(void *unused)
{
	char byte;
	thread_number = (pid_t)syscall(SYS_gettid);
	while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
		;
	return unused;
}

/* Makes a process with this number, as soon as it is free. */
static pid_t fork_as(pid_t number)
{
	struct clone_args args;
	for (int i = 0; i < 900; i++) {
		memset(&args, 0, sizeof args);
		args.exit_signal = SIGCHLD;
		args.set_tid = (uint64_t)(uintptr_t)&number;
		args.set_tid_size = 1;
		pid_t pid = (pid_t)syscall(435, &args, sizeof args); /* clone3 */
		if (pid >= 0 || errno != EEXIST)
			return pid;
		usleep(1000);
	}
	return -1;
}

int main(int argc, char **argv)
{
	char byte;
	pthread_t other;
	pid_t child = 0;
	struct epoll_event event = { .events = EPOLLIN };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), status = 0;
	if (argc != 2 || pipe(ends) || pipe(lives))
		return 2;
	strncpy(to.sun_path, argv[1], sizeof to.sun_path - 1);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) || pthread_create(&other, NULL, wait_for_the_end, NULL))
		return 3;
	while (!thread_number)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	if (recv(fd, &byte, 1, MSG_WAITALL) == 1) {
		/* One that is stopped does not end yet, and one that is traced keeps its number. */
		struct timespec soon;
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_sec += 1;
		close(ends[1]);
		child = pthread_timedjoin_np(other, NULL, &soon) ? -1 : fork_as(thread_number);
		if (child == 0) {
			close(lives[1]);
			int epoll = epoll_create1(0);
			epoll_ctl(epoll, EPOLL_CTL_ADD, lives[0], &event);
			/* A call that any stop ends with EINTR. */
			_exit(epoll_wait(epoll, &event, 1, -1) == 1 ? 0 : 1);
		}
		if (child < 0)
			byte = '-';
		if (send(fd, &byte, 1, 0) != 1)
			return 4;
	}
	while (read(0, &byte, 1) > 0)
		;
	close(lives[1]);
	if (child > 0 && waitpid(child, &status, 0) == child)
		printf("%d\n", status);
	else
		puts("none");
	return fat_wrong(1) != 0;
}
