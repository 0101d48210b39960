/* SPDX-License-Identifier: Apache-2.0 */
/* Maps a data file and uses it: datafile KIND FILE
 *
 *   shared     MAP_SHARED, read-only
 *   private    MAP_PRIVATE, read-only
 *   written    MAP_PRIVATE, and a word of every 16th page is written to
 *   writes     MAP_SHARED, and a thread writes to the second word of each page, one page every 2 ms
 *   busy       as shared, and a thread reads pages at random without a pause
 *   twice      as shared, at two addresses
 *   locked     as shared, and locked in memory
 *   misplaced  as shared, at an address that is not congruent
 *
 * Word n of the file is n * PRIME. It touches every page, and prints "ready START". For each line of stdin it checks all words, and
 * prints "wrong N". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PRIME 0x9e3779b97f4a7c15ul
#define HUGE (2ul << 20)
#define WORDS 512ul /* of a page */

static volatile uint64_t *at;
static uint64_t words;
static const char *kind;

static int is(const char *name)
{
	return strcmp(kind, name) == 0;
}

static void *writer(void *none)
{
	(void)none;
	for (uint64_t i = 0;; i = (i + WORDS * 37) % words) {
		at[i / WORDS * WORDS + 1] += 1;
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
	return NULL;
}

static void *reader(void *none)
{
	(void)none;
	for (uint64_t i = 1;; i = i * 6364136223846793005ul + 1442695040888963407ul)
		(void)at[(i >> 20) % words];
	return NULL;
}

static uint64_t wrong(void)
{
	uint64_t count = 0;
	for (uint64_t i = 0; i < words; i++) {
		uint64_t want = i * PRIME;
		if (is("written") && i % (16 * WORDS) == 7)
			want = ~i;
		if (is("writes") && i % WORDS == 1)
			continue;
		count += at[i] != want;
	}
	return count;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	kind = argv[1];
	int writes = is("writes"), written = is("written");
	int fd = open(argv[2], writes ? O_RDWR : O_RDONLY);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) != 0)
		return 3;
	words = (uint64_t)st.st_size / 8;
	int prot = PROT_READ | (writes || written ? PROT_WRITE : 0);
	int flags = is("private") || written ? MAP_PRIVATE : MAP_SHARED;
	char *free = mmap(NULL, (size_t)st.st_size + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (free == MAP_FAILED)
		return 3;
	free = (char *)(((uintptr_t)free + HUGE - 1) & ~(HUGE - 1)) + (is("misplaced") ? 4096 : 0);
	at = mmap(free, (size_t)st.st_size, prot, flags | MAP_FIXED, fd, 0);
	if (at == MAP_FAILED)
		return 3;
	if (is("locked") && mlock((const void *)at, (size_t)st.st_size) != 0)
		return 3;
	if (is("twice")) {
		volatile const char *other = mmap(NULL, (size_t)st.st_size, prot, flags, fd, 0);
		if (other == MAP_FAILED)
			return 3;
		for (off_t i = 0; i < st.st_size; i += 4096)
			(void)other[i];
	}
	if (written)
		for (uint64_t i = 7; i < words; i += 16 * WORDS)
			at[i] = ~i;
	pthread_t thread;
	if (wrong() != 0)
		return 4;
	if ((writes && pthread_create(&thread, NULL, writer, NULL) != 0) ||
	    (is("busy") && pthread_create(&thread, NULL, reader, NULL) != 0))
		return 3;
	printf("ready %lx\n", (unsigned long)at);
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		printf("wrong %lu\n", (unsigned long)wrong());
		fflush(stdout);
	}
	return 0;
}
