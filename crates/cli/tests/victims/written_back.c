/* SPDX-License-Identifier: Apache-2.0 */
/* Waits once, in a raw system call whose timeout, or what the kernel writes to say how much of it is left, is in memory
 * that cannot be written to:
 *
 *   written_back CALL MILLISECONDS
 *
 * Prints "ready" before it, and then what the call has returned, errno, and the milliseconds that it took. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "fat.h"

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct timespec after(clockid_t clock, struct timespec time)
{
	struct timespec t;
	clock_gettime(clock, &t);
	t.tv_sec += time.tv_sec + (t.tv_nsec + time.tv_nsec) / 1000000000;
	t.tv_nsec = (t.tv_nsec + time.tv_nsec) % 1000000000;
	return t;
}

struct futex_one { uint64_t value, address; uint32_t flags, reserved; };

int main(int argc, char **argv)
{
	if (argc != 3 || fat_wrong(1))
		return 2;
	const char *call = argv[1];
	long millis = atol(argv[2]);
	struct timespec time = { millis / 1000, millis % 1000 * 1000000 };
	struct timeval value = { millis / 1000, millis % 1000 * 1000 };
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct timespec *fixed = page;
	int pipes[2], sockets[2], is = 0;
	uint32_t word = 0;
	fd_set set;
	sigset_t signals;
	char byte[64];
	struct iovec part = { byte, 1 };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
	if (page == MAP_FAILED || pipe(pipes) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) ||
	    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value))
		return 3;
	struct pollfd one = { .fd = pipes[0], .events = POLLIN };
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	int semaphores = semget(IPC_PRIVATE, 1, 0600);
	struct sembuf down = { 0, -1, 0 };
	int epoll = epoll_create1(0);
	struct mq_attr attributes = { .mq_maxmsg = 1, .mq_msgsize = sizeof byte };
	char name[64];
	snprintf(name, sizeof name, "hugelift-%d", getpid());
	long queue = syscall(SYS_mq_open, name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes);
	if (queue >= 0)
		syscall(SYS_mq_unlink, name);
	aio_context_t context = 0;
	struct io_event event;
	int has_aio = !syscall(SYS_io_setup, 1, &context);

	int64_t began = now();
	*fixed = time;
	if (!strcmp(call, "select"))
		memcpy(page, &value, sizeof value);
	if (!strcmp(call, "clock_nanosleep-absolute") || !strcmp(call, "futex_waitv"))
		*fixed = after(CLOCK_MONOTONIC, time);
	if (!strcmp(call, "mq_timedreceive"))
		*fixed = after(CLOCK_REALTIME, time);
	if (!strcmp(call, "ppoll-sticky") || !strcmp(call, "pselect6-sticky"))
		personality(personality(0xffffffff) | STICKY_TIMEOUTS);
	else if (strcmp(call, "ppoll-writable") && mprotect(page, 4096, PROT_READ))
		return 4;
	struct futex_one futex = { 0, (uint64_t)(uintptr_t)&word, 2, 0 }; /* FUTEX_32 */
	puts("ready");
	fflush(stdout);
	long result = -2;
	errno = 0;
#define IS(name) (!strcmp(call, name) && (is = 1))
	if (IS("ppoll") || IS("ppoll-sticky") || IS("ppoll-writable"))
		result = syscall(SYS_ppoll, &one, 1, fixed, NULL, 8);
	else if (IS("pselect6") || IS("pselect6-sticky"))
		result = syscall(SYS_pselect6, pipes[0] + 1, &set, NULL, NULL, fixed, NULL);
#ifdef SYS_select
	else if (IS("select"))
		result = syscall(SYS_select, pipes[0] + 1, &set, NULL, NULL, fixed);
#endif
	else if (IS("nanosleep"))
		result = syscall(SYS_nanosleep, &time, fixed);
	else if (IS("clock_nanosleep"))
		result = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, fixed);
	else if (IS("clock_nanosleep-absolute"))
		result = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, fixed, fixed);
	else if (IS("recvmmsg"))
		result = syscall(SYS_recvmmsg, sockets[0], &message, 1, 0, fixed);
	else if (IS("rt_sigtimedwait"))
		result = syscall(SYS_rt_sigtimedwait, &signals, NULL, fixed, 8);
	else if (IS("semtimedop"))
		result = syscall(SYS_semtimedop, semaphores, &down, 1, fixed);
	else if (IS("futex"))
		result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, fixed, NULL, 0);
	else if (IS("epoll_pwait2"))
		result = syscall(441, epoll, byte, 1, fixed, NULL, 8);
	else if (IS("futex_waitv"))
		result = syscall(449, &futex, 1, 0, fixed, CLOCK_MONOTONIC);
	else if (IS("mq_timedreceive") && queue >= 0)
		result = syscall(SYS_mq_timedreceive, queue, byte, sizeof byte, NULL, fixed);
	else if (IS("io_pgetevents") && has_aio)
		result = syscall(SYS_io_pgetevents, context, 1, 1, &event, fixed, NULL);
	int error = result < 0 ? errno : 0;
	int64_t took = (now() - began) / 1000000;
	semctl(semaphores, 0, IPC_RMID);
	if (result == -2 || error == ENOSYS) {
		puts(is || error ? "lacks" : "unknown");
		return 0;
	}
	printf("%ld %d %ld\n", result, error, (long)took);
	return fat_wrong(1) != 0;
}
