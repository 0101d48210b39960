/* SPDX-License-Identifier: Apache-2.0 */
/* Does what is ordered by letters on stdin, at the worst moments of a lift, while threads check its code and its
 * constants:
 *
 *   hostile LIBRARY
 *
 * Prints "ready". A letter is an act (see `act`); its line on stdout is "did LETTER", or "cannot LETTER". 'U' undoes all
 * acts, and its line is "wrong N signals M": how often code, constants or memory of an act were not what they should
 * be, and how many real-time signals have come. Ends at the end of stdin.
 *
 * The thread that takes the orders computes as well: a sleeping one would be borrowed, and could not act. */
#define _GNU_SOURCE
#include "fat.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
size_t library_wrong(void);
size_t library_wrong(void) { return fat_wrong(50); }
#else

enum { DECOYS = 3, CHECKERS = 2, PIECES = 32, PIECE = 256 << 10, PAGE = 4096, OWN = 16 * PAGE, HUGE_PAGE = 2 << 20 };
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static atomic_int wrong, came, answers;
static pthread_t decoys[DECOYS];
static int decoy_ids[DECOYS];
static char *pieces[PIECES];
static char **arguments;
static void *library;
static char order;
static char selector; /* of syscall user dispatch: 1 blocks */
static unsigned long libc_start, libc_bytes, code_start, code_bytes;
static int ring = -1, ring_pages;
static void *ring_memory;
/* Data to lift, which the checkers write to all the time. */
static volatile uint32_t data[2 << 20] = { 1 };

/* Pages of the code in the middle of the first huge page, whose functions nobody calls. */
static char *own(void)
{
	uintptr_t huge = ((uintptr_t)fat_code + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
	return (char *)huge + HUGE_PAGE / 2;
}

static size_t code_wrong(size_t step)
{
	size_t bad = 0, count = (size_t)(fat_code_end - fat_code) / 64;
	for (size_t i = 0; i < count; i += step) {
		const char *at = (const char *)fat_code + 64 * i;
		if (at + 64 > own() && at < own() + OWN)
			continue;
		bad += ((uint32_t(*)(void))(uintptr_t)at)() != fat_value((uint32_t)i);
	}
	for (size_t i = 0; i < (size_t)(fat_data_end - fat_data); i += step)
		bad += fat_data[i] != fat_value((uint32_t)i);
	return bad;
}

/* Checks what was mapped into holes. */
static size_t pieces_wrong(void)
{
	size_t bad = 0;
	for (int i = 0; i < PIECES; i++)
		for (size_t at = 0; pieces[i] && at < PIECE; at += PAGE)
			bad += pieces[i][at] != (char)(i + 1);
	return bad;
}

static void *check(void *number)
{
	struct timespec pause = { 0, 1000000 };
	size_t words = sizeof data / sizeof *data, first = 1 + (size_t)(intptr_t)number;
	for (uint32_t round = 0;; round++) {
		atomic_fetch_add(&wrong, (int)code_wrong(601));
		/* Each checker has its own words: none of its writes may be lost. */
		for (size_t at = first; at < words; at += 512) {
			if (data[at] != round)
				atomic_fetch_add(&wrong, 1);
			data[at] = round + 1;
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void *decoy(void *number)
{
	int i = (int)(intptr_t)number;
	decoy_ids[i] = (int)syscall(SYS_gettid);
	atomic_fetch_add(&answers, 1);
	for (;;)
		poll(NULL, 0, -1);
	return NULL;
}

static void start_decoys(void)
{
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 128 << 10);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	atomic_store(&answers, 0);
	for (intptr_t i = 0; i < DECOYS; i++)
		if (pthread_create(&decoys[i], &small, decoy, (void *)i))
			_exit(90);
	while (atomic_load(&answers) < DECOYS)
		usleep(200);
}

/* A filter for the calling thread that kills for mremap(2). */
static int filter(void)
{
	struct sock_filter ops[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof ops / sizeof *ops, ops };
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What a decoy does, as soon as it can take a signal. */
static void on_order(int signal)
{
	int saved = errno;
	(void)signal;
	/* System calls from elsewhere than the C library are delivered as SIGSYS. */
	if (order == 'd' &&
	    prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, libc_start, libc_bytes, &selector))
		atomic_fetch_add(&wrong, 1000);
	if (order == 'D')
		prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0);
	if (order == 'q' && filter())
		atomic_fetch_add(&wrong, 1000);
	errno = saved;
	atomic_fetch_add(&answers, 1);
	if (order == 'x')
		pthread_exit(NULL);
}

static void on_real_time(int signal)
{
	(void)signal;
	atomic_fetch_add(&came, 1);
}

static int tell_decoys(char what, int waits)
{
	order = what;
	atomic_store(&answers, 0);
	for (int i = 0; i < DECOYS; i++)
		syscall(SYS_tgkill, getpid(), decoy_ids[i], SIGUSR2);
	/* The borrowed one does it when it has come back. */
	while (atomic_load(&answers) < (waits ? DECOYS : DECOYS - 1))
		usleep(200);
	return 0;
}

/* Finds the code of the C library and of the program. */
static int find_code(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size, (void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + header->p_vaddr, end = start + header->p_memsz;
		uintptr_t call = (uintptr_t)&prctl, code = (uintptr_t)fat_code;
		if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
			continue;
		if (call >= start && call < end)
			libc_start = start, libc_bytes = end - start;
		if (code >= start && code < end)
			code_start = start & ~(uintptr_t)(PAGE - 1), code_bytes = end - code_start;
	}
	return 0;
}

static int open_library(void)
{
	size_t (*check_library)(void);
	library = dlopen(arguments[1], RTLD_NOW);
	check_library = library ? (size_t(*)(void))dlsym(library, "library_wrong") : NULL;
	if (!check_library)
		return -1;
	atomic_fetch_add(&wrong, (int)check_library());
	return 0;
}

/* Maps the own pages from the file again. */
static int map_own(void)
{
	unsigned long from = 0, offset = 0, at = (unsigned long)own();
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), found = 0;
	/* The program is linked at a fixed address: a mapping of its code that is still there tells the offset. */
	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long to;
		if (sscanf(line, "%lx-%lx r-xp %lx", &from, &to, &offset) == 3 && strstr(line, "hostile")) {
			found = 1;
			break;
		}
	}
	if (maps)
		fclose(maps);
	void *got = found ? mmap((void *)at, OWN, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file,
				 (off_t)(at - from + offset))
			  : MAP_FAILED;
	close(file);
	return got == MAP_FAILED;
}

static int set_up_ring(void)
{
	struct io_uring_params params = { 0 };
	ring = (int)syscall(SYS_io_uring_setup, 8, &params);
	if (ring < 0)
		return -1;
	ring_pages = (int)(params.sq_off.array + params.sq_entries * 4);
	ring_memory = mmap(NULL, (size_t)ring_pages, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	return ring_memory == MAP_FAILED;
}

/* Forks a child that checks the code, now and a little later, and waits for it. */
static int fork_once(void)
{
	int status;
	pid_t pid = fork();
	if (pid < 0)
		return -1;
	if (pid == 0) {
		size_t bad = code_wrong(37);
		usleep(3000);
		_exit(bad + code_wrong(41) ? 1 : 0);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	atomic_fetch_add(&wrong, status ? 1 : 0);
	return 0;
}

/* Does what a letter orders; returns 0 if it is done. */
static int act(char letter)
{
	switch (letter) {
	case 'w': /* makes all of its code writable, so that no mapping is split, and later writes to it */
		return mprotect((void *)code_start, code_bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
	case 'p': /* makes a part of it writable */
		return mprotect(own(), OWN, PROT_READ | PROT_WRITE | PROT_EXEC);
	case 'n': /* takes all rights from a part of its code */
		return mprotect(own(), OWN, PROT_NONE);
	case 'u': /* unmaps a part of its code */
		return munmap(own(), OWN);
	case 'h': /* maps memory wherever there is a hole */
		for (int i = 0; i < PIECES; i++) {
			char *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (piece == MAP_FAILED)
				return -1;
			memset(piece, i + 1, PIECE);
			pieces[i] = piece;
		}
		return 0;
	case 'f':
		return fork_once();
	case 'e':
		/* All threads end first, the borrowed one when it is let go. */
		puts("did e");
		return execv("/proc/self/exe", arguments);
	case 'x': /* the threads that sleep, of which one is borrowed, end */
	case 'd': /* they get syscall user dispatch */
	case 'q': /* they get a filter */
		return tell_decoys(letter, 0);
	case 'i':
		return set_up_ring();
	case 'c':
		return dlclose(library);
	default:
		return -1;
	}
}

static void undo(char letter)
{
	char *at = own();
	switch (letter) {
	case 'w':
	case 'p':
		/* The same byte again: whoever took the page for read-only ends the program here. */
		for (size_t i = 0; i < OWN; i += PAGE)
			((volatile char *)at)[i] = at[i];
		mprotect((void *)code_start, code_bytes, PROT_READ | PROT_EXEC);
		break;
	case 'n':
		mprotect(at, OWN, PROT_READ | PROT_EXEC);
		break;
	case 'u':
		atomic_fetch_add(&wrong, map_own());
		break;
	case 'h':
		atomic_fetch_add(&wrong, (int)pieces_wrong());
		for (int i = 0; i < PIECES; i++)
			if (pieces[i])
				munmap(pieces[i], PIECE), pieces[i] = NULL;
		break;
	case 'x':
		while (atomic_load(&answers) < DECOYS)
			usleep(200);
		start_decoys();
		break;
	case 'd':
		while (atomic_load(&answers) < DECOYS)
			usleep(200);
		tell_decoys('D', 1);
		break;
	case 'i':
		munmap(ring_memory, (size_t)ring_pages);
		close(ring);
		break;
	case 'c':
		atomic_fetch_add(&wrong, open_library() ? 1 : 0);
		break;
	}
}

/* The first thread that ends makes the C library load another library. */
static void *leave(void *unused)
{
	pthread_exit(unused);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_order, .sa_flags = SA_RESTART };
	struct pollfd input = { .fd = 0, .events = POLLIN };
	pthread_t checker;
	char letter, last = 0;
	if (argc != 2)
		return 2;
	arguments = argv;
	mallopt(M_ARENA_MAX, 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	selector = 1;
	dl_iterate_phdr(find_code, NULL);
	sigaction(SIGUSR2, &action, NULL);
	action.sa_handler = on_real_time;
	sigaction(SIGRTMIN, &action, NULL);
	if (open_library())
		return 3;
	if (pthread_create(&checker, NULL, leave, NULL) || pthread_join(checker, NULL))
		return 4;
	for (intptr_t i = 0; i < CHECKERS; i++)
		if (pthread_create(&checker, NULL, check, (void *)i))
			return 4;
	start_decoys();
	puts("ready");
	for (;;) {
		/* No sleep: a thread that sleeps may be borrowed. */
		while (poll(&input, 1, 0) == 0)
			atomic_fetch_add(&wrong, (int)code_wrong(601));
		if (read(0, &letter, 1) <= 0)
			return 0;
		if (letter == 'U') {
			if (last)
				undo(last);
			last = 0;
			atomic_fetch_add(&wrong, (int)code_wrong(7));
			printf("wrong %d signals %d\n", atomic_exchange(&wrong, 0), atomic_exchange(&came, 0));
			continue;
		}
		int failed = act(letter);
		last = failed ? 0 : letter;
		printf("%s %c\n", failed ? "cannot" : "did", letter);
	}
}
#endif
