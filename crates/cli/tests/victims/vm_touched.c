/* SPDX-License-Identifier: Apache-2.0 */
/* vm_touched ANON HOT FILE HOT_OF_FILE: fills ANON MB of anonymous memory, reads all of FILE through a shared mapping, prints
 * where both lie, and then touches the first HOT MB of the one and the first HOT_OF_FILE MB of the other again and again,
 * until it is killed. With HOT 0 it sleeps. "-" is no file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MB ((size_t)1 << 20)
/* The largest huge page of a machine that the tests know is 32 MB. */
#define ALIGNED (32 * MB)
/* The kernel empties the whole TLB if so much is unmapped at once. */
#define FLUSHED (64 * MB)

static volatile unsigned char *map(size_t bytes, int flags, int fd)
{
	void *at = mmap(NULL, bytes + ALIGNED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t start = ((uintptr_t)at + ALIGNED - 1) / ALIGNED * ALIGNED;
	if (at == MAP_FAILED)
		return NULL;
	at = mmap((void *)start, bytes, PROT_READ | (fd < 0 ? PROT_WRITE : 0), flags | MAP_FIXED, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

/* An emulated machine's TLB may hold everything for ever, and the kernel sees an access only when an entry is loaded. */
static void empty_tlb(size_t page)
{
	volatile unsigned char *at =
		mmap(NULL, FLUSHED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return;
	madvise((void *)at, FLUSHED, MADV_NOHUGEPAGE);
	at[0] = at[FLUSHED - page] = 1;
	munmap((void *)at, FLUSHED);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t anon_bytes = (size_t)atol(argv[1]) * MB, hot = (size_t)atol(argv[2]) * MB;
	size_t file_bytes = 0, hot_of_file = (size_t)atol(argv[4]) * MB;
	volatile unsigned char *anon = map(anon_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), *file = NULL;
	unsigned sum = 0;
	if (!anon)
		return 3;
	for (size_t i = 0; i < anon_bytes; i += page)
		anon[i] = 1;
	if (strcmp(argv[3], "-")) {
		struct stat st;
		int fd = open(argv[3], O_RDONLY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &st) || !(file = map((size_t)st.st_size, MAP_SHARED, fd)))
			return 4;
		file_bytes = (size_t)st.st_size;
		for (size_t i = 0; i < file_bytes; i += page)
			sum += file[i];
	}
	printf("ready %p %zu %p %zu\n", (void *)anon, anon_bytes, (void *)file, file_bytes);
	fflush(stdout);
	if (!hot)
		for (;;)
			pause();
	for (;;) {
		for (size_t i = 0; i < hot; i += page)
			sum += anon[i];
		for (size_t i = 0; i < hot_of_file && i < file_bytes; i += page)
			sum += file[i];
		empty_tlb(page);
		if (sum == 7)
			usleep(1);
	}
}
