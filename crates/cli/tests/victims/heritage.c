/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what huge pages have broken in other tools. The argument names the case:
 *   rw        data, zeros, constants and functions are as they were, and writable as they were
 *   cow       after fork, parent and child each have their own copy
 *   protect   mprotect forbids and allows access again, to one page and to huge pages
 *   poke      a debugger writes into data and code of a child
 *   shrink    what malloc gives back goes back to the kernel, and what it keeps stays right
 *   brk-near  the heap grows up to a huge page that is mapped behind it, and no further
 *   stack     the stack grows down to a huge page mapped below it, and no further
 *   shm       System V shared memory of odd sizes, in two processes
 * With a second argument, "huge", data and zeros must be on huge pages. Prints "pass".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIG (1u << 20) /* words of 8 bytes */
#define HUGE (2ul << 20)
#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: " #what " (errno %d)\n", __LINE__, errno); \
			exit(1); \
		} \
	} while (0)

int main(int argc, char **argv);
__asm__(".pushsection .data.big,\"aw\",@progbits\n.balign 4096\ndata: .fill 2097152, 4, 0x12345678\n.popsection\n"
	".pushsection .rodata.big,\"a\",@progbits\n.balign 4096\nconstant: .fill 2097152, 4, 0x76543210\n.popsection\n"
	".pushsection .text.big,\"ax\",@progbits\n.balign 4096\n.fill 6291456, 1, 0xc3\n.popsection\n");
extern volatile uint64_t data[BIG];
extern const volatile uint64_t constant[BIG];
static volatile uint64_t zero[BIG];

static sigjmp_buf out;
static void fault(int signal) { siglongjmp(out, signal); }

/* Whether writing there is forbidden. */
static int refuses(volatile uint64_t *at)
{
	signal(SIGSEGV, fault);
	int caught = sigsetjmp(out, 1);
	if (!caught)
		*at = *at;
	signal(SIGSEGV, SIG_DFL);
	return caught == SIGSEGV;
}

/* Whether the mapping of `at` has huge pages. */
static int is_huge(volatile void *at)
{
	char line[512];
	int here = 0, huge = 0;
	FILE *smaps = fopen("/proc/self/smaps", "re");
	CHECK(smaps);
	while (fgets(line, sizeof line, smaps)) {
		uintptr_t from, to;
		unsigned long kb;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= (uintptr_t)at && (uintptr_t)at < to;
		else if (here && (sscanf(line, "AnonHugePages: %lu", &kb) == 1 || sscanf(line, "Private_Hugetlb: %lu", &kb) == 1))
			huge |= kb > 0;
	}
	fclose(smaps);
	return huge;
}

static int well(void) { return 42; }

static void rw(int expect_huge)
{
	int (*volatile call)(void) = well;
	for (size_t i = 0; i < BIG; i++)
		CHECK(data[i] == 0x1234567812345678 && zero[i] == 0 && constant[i] == 0x7654321076543210);
	CHECK(call() == 42);
	for (size_t i = 0; i < BIG; i += 512) {
		data[i] = i, zero[i] = ~i;
		CHECK(data[i] == i && zero[i] == ~i);
	}
	for (size_t i = 0; i < BIG; i += BIG / 8)
		CHECK(refuses((volatile uint64_t *)&constant[i]));
	CHECK(refuses((volatile uint64_t *)(uintptr_t)well));
	if (expect_huge)
		CHECK(is_huge(&data[BIG / 2]) && is_huge(&zero[BIG / 2]));
}

static void cow(void)
{
	int down[2], up[2];
	char go = 0;
	CHECK(!pipe(down) && !pipe(up));
	for (size_t i = 0; i < BIG; i++)
		data[i] = i, zero[i] = i;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		for (size_t i = 0; i < BIG; i += 512)
			data[i] = 7, zero[i] = 8;
		CHECK(write(up[1], &go, 1) == 1 && read(down[0], &go, 1) == 1);
		for (size_t i = 0; i < BIG; i += 512)
			CHECK(data[i] == 7 && zero[i] == 8 && data[i + 1] == i + 1 && zero[i + 1] == i + 1);
		_exit(0);
	}
	CHECK(read(up[0], &go, 1) == 1);
	for (size_t i = 0; i < BIG; i++)
		CHECK(data[i] == i && zero[i] == i);
	for (size_t i = 1; i < BIG; i += 512)
		data[i] = zero[i] = 9;
	int status;
	CHECK(write(down[1], &go, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
}

static void protect(void)
{
	uintptr_t page = ((uintptr_t)&zero[BIG / 2] + 4095) & ~4095ul;
	uintptr_t whole = ((uintptr_t)&zero[0] + HUGE - 1) & ~(HUGE - 1);
	struct { uintptr_t at; size_t bytes; } pieces[] = {{whole, HUGE}, {whole, 2 * HUGE}, {page, 4096}};
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		volatile uint64_t *first = (volatile uint64_t *)pieces[i].at;
		*first = 5;
		/* In a hugetlb page a small page cannot be protected: then nothing has changed. */
		if (mprotect((void *)pieces[i].at, pieces[i].bytes, PROT_READ)) {
			CHECK(errno == EINVAL && pieces[i].bytes < HUGE && !refuses(first));
			continue;
		}
		CHECK(refuses(first) && *first == 5 && !refuses((volatile uint64_t *)(pieces[i].at + pieces[i].bytes)));
		CHECK(!mprotect((void *)pieces[i].at, pieces[i].bytes, PROT_READ | PROT_WRITE));
		CHECK(!refuses(first));
		*first = 6;
	}
}

static void poke(void)
{
	data[BIG / 2] = 1;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(data[BIG / 2] == 77 && zero[BIG / 2] == 78 ? well() : 1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	CHECK(!ptrace(PTRACE_POKEDATA, child, &data[BIG / 2], 77) && !ptrace(PTRACE_POKEDATA, child, &zero[BIG / 2], 78));
	errno = 0;
	long code = ptrace(PTRACE_PEEKTEXT, child, well, 0);
	/* A breakpoint set and taken back. (Some kernels refuse it in pages of the pool.) */
	if (!errno && !ptrace(PTRACE_POKETEXT, child, well, code ^ 0xff))
		CHECK(!ptrace(PTRACE_POKETEXT, child, well, code));
	CHECK(!ptrace(PTRACE_CONT, child, 0, 0) && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42 && data[BIG / 2] == 1 && zero[BIG / 2] == 0);
}

static void shrink(void)
{
	enum { N = 512, EACH = 65536 };
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	char *before = sbrk(0), *blocks[N];
	for (int i = 0; i < N; i++) {
		CHECK(blocks[i] = malloc(EACH));
		memset(blocks[i], i, EACH);
	}
	char *top = sbrk(0);
	CHECK(top >= before + (size_t)N * EACH - HUGE);
	for (int i = N - 1; i >= N / 8; i--)
		free(blocks[i]);
	malloc_trim(0);
	CHECK((char *)sbrk(0) < top - (size_t)N / 2 * EACH);
	for (int i = 0; i < N / 8; i++)
		for (int j = 0; j < EACH; j += 4095)
			CHECK(blocks[i][j] == (char)i);
}

static void brk_near(void)
{
	char *start = sbrk(0);
	uintptr_t wall = ((uintptr_t)start + 16 * HUGE) & ~(HUGE - 1);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	char *behind = mmap((void *)wall, HUGE, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
	if (behind == MAP_FAILED)
		behind = mmap((void *)wall, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	CHECK(behind == (char *)wall);
	memset(behind, 0x77, HUGE);
	char *top = start;
	while (sbrk(65536) != (void *)-1) {
		memset(top, 0x11, 65536);
		top += 65536;
		CHECK((uintptr_t)top <= wall);
	}
	CHECK(errno == ENOMEM && wall - (uintptr_t)top <= 2 * 65536);
	for (size_t i = 0; i < HUGE; i++)
		CHECK(behind[i] == 0x77);
	for (char *at = start; at < top; at += 4096)
		CHECK(*at == 0x11);
	CHECK(!brk(start) && sbrk(0) == start && sbrk(4096) == start && start[0] == 0);
}

static __attribute__((noinline)) int deeper(volatile char *limit)
{
	volatile char frame[16384];
	frame[0] = 1;
	return (volatile char *)frame < limit ? frame[0] : deeper(limit) + frame[0];
}

static void stack(void)
{
	struct rlimit all = {64 << 20, 64 << 20};
	setrlimit(RLIMIT_STACK, &all);
	char here;
	/* Below the stack's pages and the gap that the kernel keeps. */
	uintptr_t wall = ((uintptr_t)&here - 12 * HUGE) & ~(HUGE - 1);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	char *below = mmap((void *)wall, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	CHECK(below == (char *)wall);
	memset(below, 0x55, HUGE);
	/* The stack grows, but not into this mapping. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		_exit(deeper(&here - 8 * HUGE) == 0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_CORE, &none);
	if (!(child = fork()))
		_exit(deeper((char *)wall) == 0);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	for (size_t i = 0; i < HUGE; i++)
		CHECK(below[i] == 0x55);
}

static void shm(void)
{
	for (size_t bytes = 1; bytes < 9 << 20; bytes = bytes * 5 + 4095) {
		int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
		CHECK(id >= 0);
		volatile char *at = shmat(id, NULL, 0);
		struct shmid_ds seen;
		/* IPC_RMID: the segment goes with its last process, whatever happens. */
		CHECK(at != (char *)-1 && !shmctl(id, IPC_STAT, &seen) && !shmctl(id, IPC_RMID, NULL));
		CHECK(seen.shm_segsz == bytes && seen.shm_nattch == 1 && at[bytes - 1] == 0);
		at[0] = 1, at[bytes - 1] = 2;
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			at[bytes / 2] = 3;
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(at[bytes / 2] == 3 && (bytes < 3 || (at[0] == 1 && at[bytes - 1] == 2)));
		CHECK(!shmdt((void *)at));
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int expect_huge = argc > 2 && !strcmp(argv[2], "huge");
	if (!strcmp(what, "rw")) rw(expect_huge);
	else if (!strcmp(what, "cow")) cow();
	else if (!strcmp(what, "protect")) protect();
	else if (!strcmp(what, "poke")) poke();
	else if (!strcmp(what, "shrink")) shrink();
	else if (!strcmp(what, "brk-near")) brk_near();
	else if (!strcmp(what, "stack")) stack();
	else if (!strcmp(what, "shm")) shm();
	else return 2;
	puts("pass");
	return 0;
}
