/* SPDX-License-Identifier: Apache-2.0
 *
 * As a library: a constructor starts eight threads that allocate, fill, check and free memory while
 * the program is loaded and lifted. The program ends them and prints how many checks failed. As
 * a short worker (-DSHORT): does a little of all this and checks it. Exit status 0.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 8
#define BIG (3u << 20)

int allocating_end(void);

#ifdef LIBRARY
static volatile char data[BIG] = {1}, zero[BIG];
static atomic_int stop, rounds, wrong;
static pthread_t threads[THREADS];

static int is(const volatile char *at, char what, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 61)
		if (at[i] != what)
			return 0;
	return at[bytes - 1] == what;
}

static void *work(void *argument)
{
	int me = (int)(long)argument;
	size_t share = BIG / THREADS;
	for (int round = 1; !stop; round++) {
		size_t bytes = 1 + (size_t)rand() % (round % 16 ? 20000 : 3 << 20);
		char what = (char)(me * 16 + round), *block = malloc(bytes);
		char *mapped = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (!block || mapped == MAP_FAILED)
			return wrong++, NULL;
		memset(block, what, bytes);
		memset(mapped, what, 1 << 16);
		memset((char *)data + me * share, what, share);
		memset((char *)zero + me * share, what, share);
		sched_yield();
		if (!is(block, what, bytes) || !is(mapped, what, 1 << 16) || !is(data + me * share, what, share) ||
		    !is(zero + me * share, what, share))
			wrong++;
		free(block);
		munmap(mapped, 1 << 16);
		rounds++;
	}
	return NULL;
}

__attribute__((constructor)) static void start(void)
{
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			wrong++;
	/* All of them are running when the program is lifted. */
	while (rounds < 4 * THREADS && !wrong)
		usleep(100);
}

int allocating_end(void)
{
	int before = rounds;
	while (rounds < before + 4 * THREADS && !wrong)
		usleep(100);
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return wrong;
}
#elif defined SHORT
static volatile char data[BIG] = {1}, zero[BIG];

int main(void)
{
	size_t bytes = 1 << 20;
	char *block = malloc(bytes);
	if (!block)
		return 1;
	for (size_t i = 0; i < BIG; i += 4096) {
		if (data[i] != (i == 0) || zero[i])
			return 2;
		data[i] = zero[i] = (char)i + 3;
	}
	memset(block, 9, bytes);
	for (size_t i = 0; i < BIG; i += 4096)
		if (data[i] != (char)i + 3 || zero[i] != (char)i + 3 || block[i % bytes] != 9)
			return 3;
	free(block);
	return 0;
}
#else
int main(void)
{
	int wrong = allocating_end();
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
#endif
