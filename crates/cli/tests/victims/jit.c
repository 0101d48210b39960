/* SPDX-License-Identifier: Apache-2.0 */
/* Makes code while it runs, as a JIT compiler does, and executes all of it all the time. "wx": in memory that is writable and
   executable. "flip": in memory whose pages it makes writable and executable in turn. Prints "ready". */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MB (1ul << 20)
#define BYTES (8 * MB)
#define PAGE 4096ul
#define PAGES (BYTES / PAGE)

static char *code;
static volatile int stop, wrong;

/* Writes a function that returns `value` to the start of a page. */
static void make(unsigned long page, uint32_t value)
{
	char *at = code + page * PAGE;
#if defined(__x86_64__)
	at[0] = (char)0xb8; /* mov $value, %eax */
	memcpy(at + 1, &value, 4);
	at[5] = (char)0xc3; /* ret */
#elif defined(__aarch64__)
	uint32_t words[] = { 0x52800000 | (value & 0xffff) << 5, 0x72a00000 | value >> 16 << 5, 0xd65f03c0 };
	memcpy(at, words, sizeof words); /* movz, movk, ret */
#endif
	__builtin___clear_cache(at, at + 64);
}

static uint32_t call(unsigned long page)
{
	return ((uint32_t (*)(void))(uintptr_t)(code + page * PAGE))();
}

static uint32_t value(unsigned long page)
{
	return (uint32_t)(page * 2654435761u) + 1;
}

static void *execute(void *unused)
{
	while (!stop)
		for (unsigned long page = 0; page < PAGES; page++)
			if (page % 512 && call(page) != value(page))
				wrong++;
	return unused;
}

int main(int argc, char **argv)
{
	int flip = argc > 1 && !strcmp(argv[1], "flip");
	char *p = mmap(0, BYTES + 2 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	code = (char *)(((uintptr_t)p + 2 * MB - 1) & ~(2 * MB - 1));
	if (mprotect(code, BYTES, PROT_READ | PROT_WRITE | (flip ? 0 : PROT_EXEC)))
		return perror("mprotect"), 3;
	for (unsigned long page = 0; page < PAGES; page++)
		make(page, value(page));
	if (flip && mprotect(code, BYTES, PROT_READ | PROT_EXEC))
		return perror("mprotect"), 3;
	pthread_t thread;
	pthread_create(&thread, 0, execute, 0);
	setvbuf(stdout, 0, _IOLBF, 0);
	printf("ready\n");
	/* Each byte of its input makes the first function of each huge page anew, a hundred times; the thread executes the others. */
	for (int c; (c = getchar()) != EOF;)
		for (int round = 0; round < 100; round++)
			for (unsigned long page = 0; page < PAGES; page += 512) {
				if (flip && mprotect(code + page * PAGE, PAGE, PROT_READ | PROT_WRITE))
					return perror("mprotect"), 3;
				make(page, value(page));
				if (flip && mprotect(code + page * PAGE, PAGE, PROT_READ | PROT_EXEC))
					return perror("mprotect"), 3;
			}
	stop = 1;
	pthread_join(thread, 0);
	for (unsigned long page = 0; page < PAGES; page++)
		wrong += call(page) != value(page);
	printf("wrong %d\n", wrong);
	return wrong != 0;
}
