/* SPDX-License-Identifier: Apache-2.0 */
/* Has 1000 functions, each on a page of its own, of which it calls some without end:
 *
 *   pages HOT [SECONDS | jit | THREADS threads]
 *
 * calls the first HOT of them. It prints "ready" with the addresses of the first of these and of what is behind the
 * last. With SECONDS it ends by SIGALRM; with `jit` it calls a copy of the first function in memory of its own; with
 * THREADS it has so many threads that sleep. With HOT 0 it sleeps. With -DWIDE its functions begin on a huge page, and
 * code that it never calls lies before and behind them. After every 64 calls it makes a system call, as a server does.
 *
 * main() is on another huge page then. It calls functions that take longer, so that it has far less than 1 % of the samples. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

#ifdef WIDE
#define LOOPS 40000
#define COLD(megabytes) __asm__(".text\n.balign 0x200000\n.fill " megabytes " << 20, 1, 0\n.balign 0x200000\n")
#else
#define LOOPS 2000
#define COLD(megabytes) __asm__("")
#endif

#define F(n) \
	__attribute__((noinline, aligned(PAGE))) unsigned f##n(unsigned x) \
	{ \
		for (int i = 0; i < LOOPS; i++) \
			__asm__ volatile("" : "+r"(x)); \
		return x; \
	}
#define TEN(X, p) X(p##0) X(p##1) X(p##2) X(p##3) X(p##4) X(p##5) X(p##6) X(p##7) X(p##8) X(p##9)
#define TENS(p) TEN(F, p)
#define HUNDRED(p) \
	TENS(p##0) TENS(p##1) TENS(p##2) TENS(p##3) TENS(p##4) TENS(p##5) TENS(p##6) TENS(p##7) TENS(p##8) TENS(p##9)
COLD("4");
HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5) HUNDRED(6) HUNDRED(7) HUNDRED(8) HUNDRED(9)

COLD("6");

static void *asleep(void *unused)
{
	for (;;)
		pause();
	return unused;
}

int main(int argc, char **argv)
{
	int hot = argc > 1 ? atoi(argv[1]) : 0;
	unsigned (*first)(unsigned) = f000;
	char *start = (char *)first;
	if (argc > 3) {
		pthread_attr_t small;
		pthread_t thread;
		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 64 << 10);
		for (int i = 0; i < atoi(argv[2]); i++)
			if (pthread_create(&thread, &small, asleep, NULL))
				return 1;
	} else if (argc > 2 && !strcmp(argv[2], "jit")) {
		start = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (start == MAP_FAILED)
			return 1;
		memcpy(start, (char *)first, PAGE);
		__builtin___clear_cache(start, start + PAGE);
		hot = 1;
	} else if (argc > 2) {
		alarm((unsigned)atoi(argv[2]));
	}
	printf("ready %p %p\n", (void *)start, (void *)(start + (long)hot * PAGE));
	fflush(stdout);
	if (!hot)
		asleep(NULL);
	for (unsigned x = 0;; x++) {
		((unsigned (*)(unsigned))(start + (long)(x % (unsigned)hot) * PAGE))(x);
		if (x % 64 == 0)
			getppid();
	}
}
