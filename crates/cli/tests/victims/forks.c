/* SPDX-License-Identifier: Apache-2.0 */
/* Forks ROUNDS times with data and bss that both sides write, while a signal handler of the
 * parent writes too. Each side checks every word that it has written.
 *
 *   forks ROUNDS [exhaust] [thread] [raw] [inner] [crowd] [deep] [closed]
 *
 *   exhaust   takes all pages that are left in the pool first
 *   thread    has a second thread from the start of main on, which writes as well
 *   raw       forks by clone(2), without the C library
 *   inner     each child also forks a child
 *   crowd     has 200 mappings on pages of the pool of its own, below data and bss
 *   deep      has a file mapped below data and bss whose path is longer than PATH_MAX
 *   closed    forbids all access to a page of bss while it forks
 *
 * Prints how much of data and bss is on pages of the pool: in the parent at the start, in the first
 * child, and in the parent at the end. Exit status 0 if all was right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA (6u << 20)
#define BSS (10u << 20)
#define STEP 64 /* words */

__asm__(".pushsection .data.big,\"aw\",@progbits\n.balign 4096\ndata: .rept 786432\n.quad 0x1122334455667788\n.endr\n.popsection\n");
extern volatile uint64_t data[DATA / 8];
static volatile uint64_t zero[BSS / 8];
/* The words of the handler and of the thread: one in each small page, between the words of main. */
#define OTHERS(array, i) array[(i) * 512 + 1]

static long pool_kb(void)
{
	char line[512];
	unsigned long start = 0, end = 0, from, to, kb;
	long all = 0;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	while (smaps && fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			start = from, end = to;
			continue;
		}
		/* Smaller variables around them may be on the same huge pages. */
		int ours = (start < (uintptr_t)data + DATA && end > (uintptr_t)data) ||
			   (start < (uintptr_t)zero + BSS && end > (uintptr_t)zero);
		if (ours && sscanf(line, "Private_Hugetlb: %lu", &kb) == 1)
			all += (long)kb;
		if (ours && sscanf(line, "Shared_Hugetlb: %lu", &kb) == 1)
			all += (long)kb;
	}
	fclose(smaps);
	return all;
}

static void fill(uint64_t seed)
{
	for (size_t i = 0; i < DATA / 8; i += STEP)
		data[i] = seed + i;
	for (size_t i = 0; i < BSS / 8; i += STEP)
		zero[i] = seed ^ i;
}

static int filled(uint64_t seed)
{
	size_t wrong = 0;
	for (size_t i = 0; i < DATA / 8; i += STEP)
		wrong += data[i] != seed + i;
	for (size_t i = 0; i < BSS / 8; i += STEP)
		wrong += zero[i] != (seed ^ i);
	return wrong == 0;
}

static void others_write(void)
{
	static uint64_t n;
	n++;
	for (size_t i = 0; i < DATA / 4096; i += 64)
		OTHERS(data, i) = n;
	for (size_t i = 0; i < BSS / 4096; i += 64)
		OTHERS(zero, i) = n;
}

static void on_signal(int signal)
{
	(void)signal;
	others_write();
}

static void *on_thread(void *unused)
{
	for (;;) {
		others_write();
		usleep(200);
	}
	return unused;
}

static void exhaust(void)
{
	size_t page = 2u << 20;
	for (;;) {
		void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		if (at == MAP_FAILED)
			return;
		*(volatile char *)at = 1;
		madvise(at, page, MADV_DONTFORK);
	}
}

/* Lower than where the kernel puts a position-independent program. */
#define LOW 0x100000000ul

static void crowd(void)
{
	for (size_t i = 0; i < 200; i++) {
		void *at = (void *)(LOW + i * (4ul << 20));
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
		if (mmap(at, 2u << 20, PROT_READ, flags, -1, 0) != at)
			exit(3);
	}
}

static void deep(void)
{
	char name[201];
	memset(name, 'd', 200);
	name[200] = 0;
	for (int i = 0; i < 40; i++)
		if (mkdir(name, 0700) || chdir(name))
			exit(3);
	int file = open(name, O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, 4096))
		exit(3);
	void *at = (void *)(LOW - 4096);
	if (mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0) != at)
		exit(3);
}

/* The first whole huge page of bss. */
static void protect(int closed)
{
	uintptr_t page = ((uintptr_t)zero + (2u << 20) - 1) & ~((2ul << 20) - 1);
	if (mprotect((void *)page, 2u << 20, closed ? PROT_NONE : PROT_READ | PROT_WRITE))
		exit(3);
}

static pid_t raw_fork(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1, raw = 0, inner = 0, closed = 0, failed = 0;
	printf("parent %ld kB\n", pool_kb());
	for (int i = 2; i < argc; i++) {
		pthread_t thread;
		if (!strcmp(argv[i], "exhaust"))
			exhaust();
		if (!strcmp(argv[i], "thread") && pthread_create(&thread, NULL, on_thread, NULL))
			return puts("no thread"), 2;
		raw |= !strcmp(argv[i], "raw");
		inner |= !strcmp(argv[i], "inner");
		closed |= !strcmp(argv[i], "closed");
		if (!strcmp(argv[i], "crowd"))
			crowd();
		if (!strcmp(argv[i], "deep"))
			deep();
	}
	for (size_t i = 2; i < DATA / 8; i += STEP)
		if (data[i] != 0x1122334455667788)
			return puts("data are not what they were"), 2;
	fflush(stdout);
	if (!raw && !closed) {
		struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
		signal(SIGALRM, on_signal);
		setitimer(ITIMER_REAL, &every, NULL);
	}
	fill(1);
	for (int round = 1; round <= rounds && !failed; round++) {
		if (closed)
			protect(1);
		pid_t child = raw ? raw_fork() : fork();
		if (closed)
			protect(0);
		if (child == 0) {
			if (round == 1)
				printf("child %ld kB\n", pool_kb()), fflush(stdout);
			int wrong = !filled(round);
			fill(1000000 + round);
			if (inner) {
				int status = -1;
				pid_t grandchild = fork();
				if (grandchild == 0) {
					wrong = !filled(1000000 + round);
					fill(5);
					_exit(wrong || !filled(5));
				}
				fill(7);
				wrong |= waitpid(grandchild, &status, 0) != grandchild || status != 0 || !filled(7);
				fill(1000000 + round);
			}
			_exit(wrong || !filled(1000000 + round));
		}
		int status = -1;
		fill(round + 1);
		while (waitpid(child, &status, 0) != child)
			continue;
		if (status)
			failed = printf("round %d: the child ended with status %#x\n", round, status);
		if (!filled(round + 1))
			failed = printf("round %d: the parent's words are wrong\n", round);
	}
	printf("parent %ld kB\n", pool_kb());
	return failed ? 1 : 0;
}
