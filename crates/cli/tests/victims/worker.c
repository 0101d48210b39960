/* SPDX-License-Identifier: Apache-2.0 */
/* Has a worker thread of io_uring, which never executes code of the program: it reads zeros all the time, in the kernel. The
 * program's own thread waits in calls that end with EINTR after any stop, until stdin ends. Prints "ready" when the worker is there,
 * or "no io_uring" and why. At the end it prints how many of its functions and constants are wrong. */
#define _GNU_SOURCE
#include "fat.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIECES 1024
#define PIECE (1 << 20)

static int ring, zeros;
static struct io_uring_params params;
static unsigned char *submissions, *completions;
static struct io_uring_sqe *entries;
static struct iovec pieces[PIECES];

static void *mapped(size_t size, off_t offset)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, offset);
}

static int start(void)
{
	zeros = open("/dev/zero", O_RDONLY);
	ring = (int)syscall(SYS_io_uring_setup, 8, &params);
	if (ring < 0 || zeros < 0)
		return -1;
	submissions = mapped(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	completions = mapped(params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	entries = mapped(params.sq_entries * sizeof *entries, IORING_OFF_SQES);
	void *memory = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < PIECES; i++)
		pieces[i] = (struct iovec){ .iov_base = memory, .iov_len = PIECE };
	return submissions == MAP_FAILED || completions == MAP_FAILED || entries == MAP_FAILED ? -1 : 0;
}

/* Has a worker read a gigabyte, for a tenth of a second or so, unless it is at it. */
static void employ(void)
{
	static unsigned asked;
	unsigned done = __atomic_load_n((unsigned *)(completions + params.cq_off.tail), __ATOMIC_ACQUIRE);
	__atomic_store_n((unsigned *)(completions + params.cq_off.head), done, __ATOMIC_RELEASE);
	if (asked != done)
		return;
	unsigned *tail = (unsigned *)(submissions + params.sq_off.tail), at = *tail & (params.sq_entries - 1);
	memset(&entries[at], 0, sizeof entries[at]);
	entries[at].opcode = IORING_OP_READV;
	entries[at].flags = IOSQE_ASYNC;
	entries[at].fd = zeros;
	entries[at].addr = (uint64_t)(uintptr_t)pieces;
	entries[at].len = PIECES;
	((unsigned *)(submissions + params.sq_off.array))[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	asked += syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1;
}

static int threads(void)
{
	int count = -2;
	DIR *dir = opendir("/proc/self/task");
	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count;
}

int main(void)
{
	if (start() < 0) {
		printf("no io_uring: %s\n", strerror(errno));
		return 0;
	}
	for (int i = 0; i < 5000 && threads() < 2; i++) {
		employ();
		usleep(1000);
	}
	printf("%s\n", threads() < 2 ? "no io_uring: no worker" : "ready");
	fflush(stdout);
	struct epoll_event input = { .events = EPOLLIN };
	int events = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(events, EPOLL_CTL_ADD, 0, &input);
	while (epoll_wait(events, &input, 1, 5) <= 0)
		employ();
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
