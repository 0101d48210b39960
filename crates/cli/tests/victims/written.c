/* SPDX-License-Identifier: Apache-2.0 */
/* Runs until SIGTERM in 17 threads that write to 6 MB of .data all the time, and would notice if a write were
 * lost: each has what it wrote in memory of its own as well. They take signals and timers, let the kernel write
 * into .data (epoll_wait, read, sigwaitinfo), hold mutexes there, and fork children that check it. 6 MB of RELRO
 * with a relocation in each page, and .bss, are checked too. Prints "ready", and at the end one line of JSON; then
 * it reads stdin to its end.
 *
 * Arguments: "timed": one thread waits in sigtimedwait with a timeout of an hour; "epoll": in epoll_wait. "ring",
 * "aio": the kernel may write to its memory by io_uring or io_setup. "shares": a child by clone(CLONE_VM) writes to
 * .data all the time.
 * "births": threads begin and end all the time. "asked": SIGUSR2 may come to the process, and each thread that waits may
 * take it: only a thread whose handler has run may see EINTR. "calm": nobody writes much, and most threads wait.
 * "fullN": calm, and it may make N more mappings and no more (vm.max_map_count). With a second argument, calls that end
 * with EINTR after any stop may do so: who has stopped them may have been killed before it could hide that. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 1536

/* .data from the file, and RELRO that the loader writes to. */
__asm__(".pushsection .data\n"
        ".balign 64\n"
        ".hidden words\nwords:\n.incbin \"" FAT_DATA "\"\n"
        ".hidden words_end\nwords_end:\n"
        ".popsection\n"
        ".pushsection .data.rel.ro,\"aw\"\n"
        ".balign 4096\n"
        ".hidden table\ntable:\n"
        ".rept 1536\n.quad words\n.fill 511, 8, 0x01234567\n.endr\n"
        ".popsection\n");
extern uint64_t words[] __attribute__((visibility("hidden")));
extern uint64_t words_end[] __attribute__((visibility("hidden")));
extern const uint64_t table[] __attribute__((visibility("hidden")));

enum { WRITERS = 8, NAPPERS = 3, WAITERS = 2, READERS = 2, THREADS = WRITERS + NAPPERS + WAITERS + READERS + 2 };

/* All of these lie in .data. */
static atomic_long total = 1;
static struct epoll_event events[WAITERS] = { { .events = 1 } };
static uint64_t received[READERS] = { 1 };
static siginfo_t info = { .si_signo = 1 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long pair[2] = { 5, 5 };
static volatile long ticked = 1;
static atomic_int handled = 1;
static volatile long child_counter = 1;
static volatile long births = 1;

static unsigned char bss[4 << 20];
static uint64_t *shadow;
static atomic_int stop, errors, sent;
static atomic_long counts[THREADS];
static char first[1000];
static int event[WAITERS], pipes[READERS][2], calm, forgives, bears, asked;
static long born = 1;
static atomic_int interrupted;
static pthread_t threads[THREADS];
static size_t n_words;

static void wrong(const char *what, long value)
{
	char line[120];
	atomic_fetch_add(&errors, 1);
	snprintf(line, sizeof line, "%s: %ld; ", what, value);
	if (strlen(first) + strlen(line) < sizeof first && !strstr(first, line))
		strcat(first, line);
}

static void nap(long us)
{
	struct timespec t = { 0, us * 1000 }, rest;
	if (nanosleep(&t, &rest))
		wrong("nanosleep", errno);
}

/* Writes to words of its own, which no other thread writes to: each lost or torn write is found later. */
static void write_some(int self, unsigned *seed, int count)
{
	for (int i = 0; i < count; i++) {
		size_t at = (size_t)rand_r(seed) % (n_words / THREADS) * THREADS + (size_t)self;
		uint64_t old = ((volatile uint64_t *)words)[at];
		if (old != shadow[at])
			wrong("a word", (long)at);
		uint64_t value = old * 6364136223846793005u + 1442695040888963407u;
		((volatile uint64_t *)words)[at] = value;
		((volatile uint64_t *)shadow)[at] = value;
	}
	atomic_fetch_add(&total, count);
	atomic_fetch_add(&counts[self], count);
	pthread_mutex_lock(&lock);
	if (pair[0] != pair[1])
		wrong("pair", pair[0] - pair[1]);
	pair[0]++;
	pair[1]++;
	pthread_mutex_unlock(&lock);
}

static void check_constants(unsigned *seed)
{
	for (int i = 0; i < 100; i++) {
		size_t page = (size_t)rand_r(seed) % PAGES, at = (size_t)rand_r(seed) % 512;
		uint64_t want = at ? 0x01234567 : (uint64_t)(uintptr_t)words;
		if (((volatile const uint64_t *)table)[page * 512 + at] != want)
			wrong("a constant of RELRO", (long)page);
		size_t byte = (size_t)rand_r(seed) % sizeof bss;
		if (((volatile unsigned char *)bss)[byte] != (unsigned char)(byte * 7))
			wrong("a byte of .bss", (long)byte);
	}
}

static void *writer(void *arg)
{
	int self = (int)(intptr_t)arg;
	unsigned seed = (unsigned)self + 1;
	while (!stop) {
		write_some(self, &seed, 2000);
		check_constants(&seed);
		if (calm)
			nap(20000);
		else if (self >= WRITERS && self < WRITERS + NAPPERS)
			nap(rand_r(&seed) % 3000);
	}
	return NULL;
}

/* How often this thread has taken SIGUSR2. */
static __thread volatile int taken_here;

static void on_usr2(int signal)
{
	(void)signal;
	taken_here++;
	interrupted++;
}

static void take_usr2(void)
{
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	if (asked)
		pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* Waits for an event, which the kernel writes into .data. */
static void *waiter(void *arg)
{
	int self = (int)(intptr_t)arg, index = self - WRITERS - NAPPERS, epoll = epoll_create1(0);
	unsigned seed = (unsigned)self + 1;
	struct epoll_event wanted = { .events = EPOLLIN, .data.u64 = (uint64_t)self * 77 };
	epoll_ctl(epoll, EPOLL_CTL_ADD, event[index], &wanted);
	take_usr2();
	while (!stop) {
		uint64_t value;
		int before = taken_here;
		memset((void *)&events[index], 0, sizeof events[index]);
		int got = epoll_wait(epoll, &events[index], 1, -1);
		if (got < 0 && errno == EINTR && taken_here != before)
			continue;
		if (got < 0 && errno == EINTR && forgives) {
			interrupted++;
			continue;
		}
		if (got != 1)
			wrong("epoll_wait", got < 0 ? errno : got);
		else if (events[index].data.u64 != (uint64_t)self * 77)
			wrong("an event", (long)events[index].data.u64);
		if (read(event[index], &value, 8) != 8)
			wrong("read of an eventfd", errno);
		write_some(self, &seed, 20);
	}
	return NULL;
}

/* Reads numbers that count up from a pipe into .data. */
static void *reader(void *arg)
{
	int self = (int)(intptr_t)arg, index = self - WRITERS - NAPPERS - WAITERS;
	unsigned seed = (unsigned)self + 1;
	take_usr2();
	for (uint64_t want = 1; !stop; want++) {
		int before = taken_here;
		ssize_t got = read(pipes[index][0], &received[index], 8);
		if (got < 0 && errno == EINTR && taken_here != before) {
			want--;
			continue;
		}
		if (got != 8)
			wrong("read", got < 0 ? errno : got);
		else if (((volatile uint64_t *)received)[index] != want)
			wrong("a number from a pipe", (long)(received[index] - want));
		write_some(self, &seed, 20);
	}
	return NULL;
}

static void on_ordered(int signal, siginfo_t *got, void *context)
{
	(void)signal, (void)context;
	if (got->si_value.sival_int != atomic_load(&handled) - 1)
		wrong("a signal out of order", got->si_value.sival_int);
	atomic_fetch_add(&handled, 1);
}

static void on_tick(int signal)
{
	(void)signal;
	ticked++;
}

/* Computes, and takes signals with numbers and those of a timer. */
static void *receiver(void *arg)
{
	int self = (int)(intptr_t)arg;
	unsigned seed = (unsigned)self + 1;
	sigset_t all;
	sigemptyset(&all);
	sigaddset(&all, SIGRTMIN);
	sigaddset(&all, SIGRTMIN + 1);
	pthread_sigmask(SIG_UNBLOCK, &all, NULL);
	struct sigevent to = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1 };
	to._sigev_un._tid = gettid();
	struct itimerspec every = { { 0, 2000000 }, { 0, 2000000 } };
	timer_t timer;
	timer_create(CLOCK_MONOTONIC, &to, &timer);
	timer_settime(timer, 0, &every, NULL);
	while (!stop)
		write_some(self, &seed, 500);
	timer_delete(timer);
	return NULL;
}

/* Waits for a signal, which the kernel writes into .data. */
static void *taker(void *arg)
{
	int self = (int)(intptr_t)arg;
	unsigned seed = (unsigned)self + 1;
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGRTMIN + 2);
	for (int want = 0; !stop; want++) {
		int got = sigwaitinfo(&one, &info);
		if (got < 0 && errno == EINTR && forgives) {
			interrupted++;
			want--;
			continue;
		}
		if (got != SIGRTMIN + 2)
			wrong("sigwaitinfo", got < 0 ? errno : got);
		else if (info.si_value.sival_int != want)
			wrong("a signal that was waited for", info.si_value.sival_int - want);
		write_some(self, &seed, 20);
	}
	return NULL;
}

/* Checks a forked child's copy: at most one word of each thread was just being written. */
static int child(void)
{
	long bad = 0;
	for (size_t i = 0; i < n_words / THREADS * THREADS; i++)
		bad += words[i] != shadow[i];
	for (size_t page = 0; page < PAGES; page++)
		bad += table[page * 512] != (uint64_t)(uintptr_t)words ? 1000 : 0;
	child_counter += 5;
	words[0] = words[THREADS] = 7; /* its own copy alone */
	return bad <= THREADS ? 0 : 1;
}

/* Lives for a moment, in which it writes to .data. */
static void *brief(void *arg)
{
	(void)arg;
	births++;
	return NULL;
}

static void bear(void)
{
	pthread_t thread;
	for (int i = 0; i < 10; i++) {
		if (pthread_create(&thread, NULL, brief, NULL))
			wrong("pthread_create", errno);
		else if (born++, pthread_join(thread, NULL))
			wrong("pthread_join", errno);
	}
	if (births != born)
		wrong("a thread's write", born - births);
}

static void step(int round)
{
	static int order, taken;
	uint64_t one = 1;
	union sigval value = { .sival_int = order };
	for (int i = 0; i < WAITERS; i++)
		if (write(event[i], &one, 8) != 8)
			wrong("write to an eventfd", errno);
	for (int i = 0; i < READERS; i++) {
		static uint64_t number[READERS];
		number[i]++;
		if (write(pipes[i][1], &number[i], 8) != 8)
			wrong("write to a pipe", errno);
	}
	/* The receiver ends at the stop, and with it what is sent to it. */
	if (!stop && order - (atomic_load(&handled) - 1) < 50 && !pthread_sigqueue(threads[THREADS - 2], SIGRTMIN, value))
		order++;
	sent = order;
	value.sival_int = taken;
	if (!pthread_sigqueue(threads[THREADS - 1], SIGRTMIN + 2, value))
		taken++;
	if (round % 20 == 0) {
		int status = -1;
		pid_t pid = fork();
		if (pid == 0)
			_exit(child());
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			wrong("a child", status);
		if (child_counter != 1)
			wrong("the counter of a child", child_counter);
	}
	if (bears)
		bear();
	nap(calm ? 5000 : 1000);
}

static int sharing(void *arg)
{
	(void)arg;
	for (;;)
		child_counter = 1;
	return 0;
}

static void *timed(void *arg)
{
	struct timespec hour = { 3600, 0 };
	sigset_t one;
	(void)arg;
	sigemptyset(&one);
	sigaddset(&one, SIGRTMIN + 3);
	sigtimedwait(&one, NULL, &hour);
	wrong("the timed wait", errno);
	return NULL;
}

static void *epoll(void *arg)
{
	struct epoll_event got;
	(void)arg;
	epoll_wait(epoll_create1(0), &got, 1, 3600000);
	wrong("epoll_wait with a timeout", errno);
	return NULL;
}

/* Makes mappings, none of which can be joined with the next, until the kernel refuses, and takes `left` of them back. */
static void fill(long left)
{
	static void *last[64];
	long n = 0;
	void *at;
	while ((at = mmap(NULL, 4096, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED)
		last[n++ % 64] = at;
	while (left-- > 0)
		munmap(last[--n % 64], 4096);
}

static void start(const char *mode)
{
	static char stack[65536] __attribute__((aligned(16)));
	static uint64_t params[15];
	static aio_context_t context;
	pthread_t thread;
	if (!strcmp(mode, "timed"))
		pthread_create(&thread, NULL, timed, NULL);
	if (!strcmp(mode, "epoll"))
		pthread_create(&thread, NULL, epoll, NULL);
	if (!strcmp(mode, "ring") && syscall(SYS_io_uring_setup, 1, params) < 0)
		printf("no io_uring: %s\n", strerror(errno)), exit(0);
	if (!strcmp(mode, "aio") && syscall(SYS_io_setup, 8, &context))
		printf("no aio: %s\n", strerror(errno)), exit(0);
	if (!strcmp(mode, "shares"))
		clone(sharing, stack + sizeof stack, CLONE_VM, NULL);
	calm = !strcmp(mode, "calm") || !strncmp(mode, "full", 4);
	bears = !strcmp(mode, "births");
	asked = !strcmp(mode, "asked");
}

int main(int argc, char **argv)
{
	static struct sigaction act;
	sigset_t all, term;
	n_words = (size_t)(words_end - words);
	shadow = malloc(n_words * 8);
	memcpy(shadow, words, n_words * 8);
	for (size_t i = 0; i < sizeof bss; i++)
		bss[i] = (unsigned char)(i * 7);
	act.sa_sigaction = on_ordered;
	act.sa_flags = SA_SIGINFO | SA_RESTART;
	sigaction(SIGRTMIN, &act, NULL);
	signal(SIGRTMIN + 1, on_tick);
	act.sa_sigaction = NULL;
	act.sa_handler = on_usr2;
	act.sa_flags = 0; /* read(2) ends with EINTR */
	sigaction(SIGUSR2, &act, NULL);
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	for (int i = 0; i < WAITERS; i++)
		event[i] = eventfd(0, 0);
	for (int i = 0; i < READERS; i++)
		if (pipe(pipes[i]))
			return 1;
	forgives = argc > 2;
	if (argc > 1)
		start(argv[1]);
	for (int i = 0; i < THREADS; i++) {
		void *(*kinds[])(void *) = { writer, waiter, reader, receiver, taker };
		int kind = i < WRITERS + NAPPERS ? 0 : i < WRITERS + NAPPERS + WAITERS ? 1 : i < THREADS - 2 ? 2 : i - THREADS + 5;
		pthread_create(&threads[i], NULL, kinds[kind], (void *)(intptr_t)i);
	}
	if (argc > 1 && !strncmp(argv[1], "full", 4))
		fill(atol(argv[1] + 4));
	puts("ready");
	fflush(stdout);
	struct timespec none = { 0, 0 };
	int round = 0;
	while (sigtimedwait(&term, NULL, &none) != SIGTERM)
		step(round++);
	stop = 1;
	step(1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	long sum = 1;
	for (int i = 0; i < THREADS; i++)
		sum += counts[i];
	if (sum != total)
		wrong("the total", total - sum);
	for (size_t i = 0; i < n_words / THREADS * THREADS; i++)
		if (words[i] != shadow[i])
			wrong("a word at the end", (long)i);
	for (size_t i = 0; i < PAGES * 512; i++)
		if (table[i] != (i % 512 ? 0x01234567 : (uint64_t)(uintptr_t)words))
			wrong("RELRO at the end", (long)i);
	if (handled - 1 != sent)
		wrong("signals lost", sent - handled + 1);
	printf("{\"errors\": %d, \"first\": \"%s\", \"writes\": %ld, \"rounds\": %d, \"ticks\": %ld, \"interrupted\": %d}\n",
	       errors, first, total, round, ticked, interrupted);
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	return errors != 0;
}
