/* SPDX-License-Identifier: Apache-2.0
 *
 * A program whose data ends inside a huge page. $GUARD says what lies behind the data: in the next
 * huge page, memory that the unmapped rest guards (unmapped); in the rest, a mapped guard (none);
 * further on, a stack that grows (grows); or nothing. Prints whether the end of the rest is mapped,
 * and checks the data. Exit status 3: by chance the heap begins too near for the experiment.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef LIBRARY
/* In a library, so that it runs before the lift: an executable's own constructors run after it. */
void place(void);
__attribute__((constructor)) static void early(void) { place(); }
#else
#define HUGE (2ul << 20)
#define BYTES (5ul << 20)

static volatile char data[BYTES] = {1};
extern char end[];

static uintptr_t whole_end(void) { return ((uintptr_t)end + HUGE - 1) & ~(HUGE - 1); }

void place(void)
{
	const char *guard = getenv("GUARD");
	uintptr_t own = ((uintptr_t)end + 4095) & ~4095ul, whole = whole_end();
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	if ((uintptr_t)sbrk(0) < whole + 16 * HUGE || whole - own < 3 * 65536)
		_exit(3);
	if (!strcmp(guard, "unmapped"))
		mmap((void *)whole, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	else if (!strcmp(guard, "none"))
		mmap((void *)(own + 65536), 4096, PROT_NONE, flags, -1, 0);
	else if (!strcmp(guard, "grows"))
		mmap((void *)(whole + 4 * HUGE), HUGE, PROT_READ | PROT_WRITE, flags | MAP_GROWSDOWN, -1, 0);
}

int main(void)
{
	unsigned char resident;
	/* mincore(2) fails with ENOMEM where nothing is mapped. */
	int mapped = mincore((void *)(whole_end() - 4096), 4096, &resident) == 0;
	for (size_t i = 0; i < BYTES; i++)
		if (data[i] != (i == 0))
			return 2;
	printf("mapped behind: %s\n", mapped ? "yes" : "no");
	return 0;
}
#endif
