/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the page faults of its own bss by userfaultfd(2), as a program does that restores or migrates
 * itself: a thread fills each missing page of 4 kB with a byte. Prints how many it has filled, and in how
 * many pages the byte is.
 *
 *   userfault          after its thread has started
 *   userfault kernel   prints what the kernel answers to the same for fresh memory on pages of the pool
 *
 * Exit status 77 if there is no userfaultfd(2). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE (2ul << 20)
#define SMALL 4096ul
#define BYTE 0x5a

static volatile char zeros[4 * HUGE] __attribute__((aligned(2 << 20)));
static char page[SMALL] __attribute__((aligned(4096)));
static int faults_fd;
static volatile int filled;

static int fill(uintptr_t at)
{
	struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)page, .len = SMALL };
	return ioctl(faults_fd, UFFDIO_COPY, &copy) ? errno : 0;
}

static int watch(uintptr_t start, size_t bytes)
{
	struct uffdio_register range = { .range = { start, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	return ioctl(faults_fd, UFFDIO_REGISTER, &range) ? errno : 0;
}

static void *serve(void *unused)
{
	struct uffd_msg message;
	while (read(faults_fd, &message, sizeof message) == sizeof message)
		if (message.event == UFFD_EVENT_PAGEFAULT) {
			/* Counted before the call: after it the other thread may end the program. */
			filled++;
			if (fill(message.arg.pagefault.address & ~(SMALL - 1)))
				_exit(3);
		}
	return unused;
}

int main(int argc, char **argv)
{
	struct uffdio_api api = { .api = UFFD_API };
	pthread_t thread;
	int right = 0;

	memset(page, BYTE, sizeof page);
	faults_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults_fd < 0 || ioctl(faults_fd, UFFDIO_API, &api))
		return 77;
	if (argc > 1 && !strcmp(argv[1], "kernel")) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
		uintptr_t at = (uintptr_t)mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (at == (uintptr_t)MAP_FAILED)
			return 2;
		printf("watch a part: %s; ", strerrorname_np(watch(at + SMALL, HUGE)));
		printf("watch: %s; ", strerrorname_np(watch(at, 2 * HUGE)));
		printf("fill 4 kB: %s\n", strerrorname_np(fill(at)));
		return 0;
	}
	if (pthread_create(&thread, NULL, serve, NULL) || watch((uintptr_t)zeros, sizeof zeros))
		return 2;
	for (size_t i = 0; i < sizeof zeros; i += SMALL)
		right += zeros[i] == BYTE;
	printf("filled %d, right %d\n", filled, right);
	return 0;
}
