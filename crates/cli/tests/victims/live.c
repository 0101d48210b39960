/* SPDX-License-Identifier: Apache-2.0 */
/* Runs until SIGTERM in more than 16 threads that would notice if another process borrowed them or
 * exchanged their code. They checksum code and constants, allocate, fork, count signals and timers, and
 * check what each system call returns and when. With the argument "quiet" most threads wait, so that a
 * waiting one is borrowed. Prints "ready", and at the end one line of JSON. Then it reads stdin to its end,
 * so that its memory can be examined when all threads have ended. */
#define _GNU_SOURCE
#include "live_waits.h"
#include <malloc.h>
#include <sched.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

enum { BELOW = 1024, COROUTINE = 4096, TICK_NS = 2 * MS, TICKS = 1 << 16, BUCKETS = 8 };

static atomic_int errors, early, sent, ordered, anyone;
static atomic_long ticks, most_late[2], late[2][BUCKETS], control_ticks;
static _Atomic int64_t control[TICKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char first[2000];
static struct worker *sums[2];
static char *self;
static pid_t parent;
static int quiet; /* whether only few threads compute */

static void wrong(const char *where, const char *what, long value)
{
	char line[200];
	atomic_fetch_add(&errors, 1);
	snprintf(line, sizeof line, "%s: %s: %ld; ", where, what, value);
	pthread_mutex_lock(&lock);
	if (strlen(first) + strlen(line) < sizeof first && !strstr(first, line))
		strcat(first, line);
	pthread_mutex_unlock(&lock);
}

static void returned(const char *call, long got, long error, long want, long want_error)
{
	if (got != want)
		wrong(call, "returned", got);
	if (error != want_error && error)
		wrong(call, strerror((int)error), error);
}

/* Adds a lateness to the histogram of the control (0) or of all other waits (1). */
static void note(int which, int64_t ns)
{
	static const int64_t limits[BUCKETS - 1] = { 100000, 1 * MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS };
	long max = atomic_load(&most_late[which]);
	int bucket = 0;
	while (bucket < BUCKETS - 1 && ns >= limits[bucket])
		bucket++;
	atomic_fetch_add(&late[which][bucket], 1);
	while (ns > max && !atomic_compare_exchange_weak(&most_late[which], &max, ns))
		;
}

/* Returns how often the control thread has slept for a millisecond between two times. */
static long controls(int64_t from, int64_t to)
{
	long count = 0, end = atomic_load(&control_ticks);
	for (long i = end - 1; i >= 0 && i > end - TICKS && count < 1000; i--) {
		int64_t at = atomic_load(&control[i % TICKS]);
		if (at < from)
			break;
		count += at < to;
	}
	return count;
}

/* Returns for how many nanoseconds this thread has waited for a CPU so far, on a busy machine. */
static int64_t queued(void)
{
	char text[100] = "";
	long long ns = 0;
	int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (file >= 0 && read(file, text, sizeof text - 1) > 0)
		sscanf(text, "%*s %lld", &ns);
	if (file >= 0)
		close(file);
	return ns;
}

/* Milliseconds. The longest of the waits takes a quarter of it: a wait that is forgotten takes more. */
enum { TOO_LATE = 1000 };

static void timed(const char *call, int64_t began, int64_t queued_before, int64_t timeout, int64_t coarse)
{
	int64_t over = now() - began - timeout;
#ifdef MAY_BE_LATE /* the clock ticks of a machine that has no CPU are late, too */
	if (over > 0 || coarse)
		return;
#endif
	if (over < -coarse) {
		atomic_fetch_add(&early, 1);
		wrong(call, "ended too early, by us", (long)(-over / 1000));
	}
	note(1, over);
	/* Waiting for a CPU is no fault of a tracer, and a tracer that stops this thread may have to wait for one. */
	if (over >= TOO_LATE * MS)
		over -= queued() - queued_before;
	long ran = over < TOO_LATE * MS ? 0 : controls(began + timeout + MS, now());
	if (ran >= TOO_LATE / 4)
		wrong(call, "ended too late, by us", (long)(over / 1000));
}

static void step_control(struct worker *w)
{
	struct timespec t = { 0, MS };
	int64_t began = now();
	(void)w;
	nanosleep(&t, NULL);
	/* Other threads that wait for the lock of the address space on a busy machine are late too. */
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page != MAP_FAILED)
		munmap(page, 4096);
	int64_t end = now();
	note(0, end - began - MS);
	atomic_store(&control[atomic_load(&control_ticks) % TICKS], end);
	atomic_fetch_add(&control_ticks, 1);
}

static void check_sums(struct worker *w, size_t step)
{
	size_t bad = fat_wrong(step + chance(w, 50));
	if (bad)
		wrong("checksum", "wrong functions or words", (long)bad);
}

/* Takes the signals that have handlers. */
static void step_sums(struct worker *w)
{
	struct timespec t = { 0, (long)(quiet ? 10 : chance(w, 4)) * MS };
	check_sums(w, 200);
	nanosleep(&t, NULL); /* ends with EINTR by right */
}

static void on_ordered(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if (info->si_value.sival_int != atomic_fetch_add(&ordered, 1))
		atomic_fetch_add(&errors, 1);
}

static void on_anyone(int signal)
{
	(void)signal;
	atomic_fetch_add(&anyone, 1);
}

static void on_tick(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	atomic_fetch_add(&ticks, 1 + info->si_overrun);
}

static void on_end(int signal)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);
	(void)signal;
	for (int i = 0; i < MAX_WORKERS; i++)
		if (workers[i].tid == tid)
			atomic_fetch_add(&workers[i].handled, 1);
}

static void step_send(struct worker *w)
{
	struct timespec t = { 0, (long)(1 + chance(w, 10)) * (quiet ? MS : MS / 10) };
	int number = atomic_load(&sent);
	if (number - atomic_load(&ordered) < 500 && number - atomic_load(&anyone) < 500) {
		int failed = pthread_sigqueue(sums[0]->thread, ORDERED, (union sigval){ .sival_int = number });
		if (failed || sigqueue(getpid(), ANYONE, (union sigval){ .sival_int = number }))
			wrong("sigqueue", strerror(failed ? failed : errno), number);
		atomic_fetch_add(&sent, 1);
	}
	TIMED("nanosleep of the sender", t.tv_nsec, 0, 0, 0, nanosleep(&t, NULL));
}

/* Keeps registers and flags busy, without memory. */
static void step_registers(struct worker *w)
{
#ifdef __x86_64__
	for (int i = 0; i < 20; i++) {
		unsigned long n = 50000, ax = 0x11, dx = 0x22, si = 0x33, di = 0x44, bad = 0;
		register unsigned long r8 __asm__("r8") = 0x88, r9 __asm__("r9") = 0x99;
		register unsigned long r10 __asm__("r10") = 0xaa, r11 __asm__("r11") = 0xbb;
		__asm__ volatile("1: stc\n adc $0, %8\n sub $1, %8\n dec %%rcx\n jnz 1b\n"
				 : "+c"(n), "+a"(ax), "+d"(dx), "+S"(si), "+D"(di), "+r"(r8), "+r"(r9),
				   "+r"(r10), "+r"(bad), "+r"(r11)
				 :: "cc");
		if (n || ax != 0x11 || dx != 0x22 || si != 0x33 || di != 0x44 || r8 != 0x88 || r9 != 0x99 ||
		    r10 != 0xaa || r11 != 0xbb || bad)
			wrong("registers", "changed", (long)bad);
	}
#elif defined __aarch64__
	/* x9 to x11 count, x0 to x8 and v0 must stay, and the carry flag is set by cmp and used by adc. */
	for (int i = 0; i < 20; i++) {
		unsigned long bad;
		__asm__ volatile(
			"mov x10, #50000\n mov x9, #0\n"
			"mov x0, #0x10\n mov x1, #0x11\n mov x2, #0x12\n mov x3, #0x13\n mov x4, #0x14\n"
			"mov x5, #0x15\n mov x6, #0x16\n mov x7, #0x17\n mov x8, #0x18\n dup v0.2d, x8\n"
			"1: cmp xzr, xzr\n adc x9, x9, xzr\n sub x9, x9, #1\n"
			"umov x11, v0.d[1]\n eor x11, x11, x8\n orr x9, x9, x11\n"
			"sub x10, x10, #1\n cbnz x10, 1b\n"
			"sub x0, x0, #0x10\n orr x9, x9, x0\n sub x1, x1, #0x11\n orr x9, x9, x1\n"
			"sub x2, x2, #0x12\n orr x9, x9, x2\n sub x3, x3, #0x13\n orr x9, x9, x3\n"
			"sub x4, x4, #0x14\n orr x9, x9, x4\n sub x5, x5, #0x15\n orr x9, x9, x5\n"
			"sub x6, x6, #0x16\n orr x9, x9, x6\n sub x7, x7, #0x17\n orr x9, x9, x7\n"
			"sub x8, x8, #0x18\n orr %0, x9, x8\n"
			: "=r"(bad)
			:: "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "v0", "cc");
		if (bad)
			wrong("registers", "changed", (long)bad);
	}
#endif
	struct timespec t = { 0, 3 * MS };
	TIMED("nanosleep after computing", t.tv_nsec, 0, 0, 0, nanosleep(&t, NULL));
	(void)w;
}

static void step_alloc(struct worker *w)
{
	enum { BLOCKS = 40 };
	unsigned char *block[BLOCKS];
	size_t size[BLOCKS], bad = 0;
	for (int i = 0; i < BLOCKS; i++) {
		size[i] = 1 + chance(w, i % 8 ? 5000 : 300000);
		block[i] = malloc(size[i]);
		memset(block[i], i, size[i]);
	}
	check_sums(w, 900);
	for (int i = 0; i < BLOCKS; i++) {
		size_t more = 1 + chance(w, 6000);
		size_t both = more < size[i] ? more : size[i];
		block[i] = realloc(block[i], more);
		for (size_t k = 0; k < both; k++)
			bad += block[i][k] != i;
		free(block[i]);
	}
	if (bad)
		wrong("malloc", "bytes changed", (long)bad);
	usleep(2000);
}

static void wait_for(const char *how, pid_t pid)
{
	int status = -1;
	pid_t got = waitpid(pid, &status, 0);
	returned(how, got, got < 0 ? errno : 0, pid, 0);
	if (status)
		wrong(how, "status of the child", status);
}

static void step_fork(struct worker *w)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(fat_wrong(500) ? 1 : 0);
	if (pid < 0)
		wrong("fork", strerror(errno), errno);
	wait_for("fork", pid);
	usleep(1000 * chance(w, 20));
}

static void step_spawn(struct worker *w)
{
	char *words[] = { self, "child", NULL }, *environment[] = { NULL };
	pid_t pid = 0;
	int failed = posix_spawn(&pid, self, NULL, NULL, words, environment);
	returned("posix_spawn", failed, failed, 0, 0);
	if (!failed)
		wait_for("posix_spawn", pid);
	usleep(1000 * chance(w, 60));
}

static void step_map(struct worker *w)
{
	size_t size = (1 + chance(w, 200)) * 4096, bad = 0;
	unsigned char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		wrong("mmap", strerror(errno), errno);
		return;
	}
	memset(at, PATTERN, size);
	returned("mprotect", mprotect(at, size, PROT_READ), errno, 0, errno);
	for (size_t i = 0; i < size; i += 64)
		bad += at[i] != PATTERN;
	returned("munmap", munmap(at, size), errno, 0, errno);
	if (bad)
		wrong("mmap", "bytes changed", (long)bad);
	usleep(500 * chance(w, 6));
}

/* Fills the bytes below the stack pointer, computes and sleeps without a function call, and returns how
 * many of the bytes have changed. All signals are blocked, so nothing may write there. */
static __attribute__((noinline)) size_t written_below(int again)
{
	volatile unsigned char *top = (volatile unsigned char *)__builtin_frame_address(0) - 512;
	struct timespec t = { 0, 2 * MS };
	size_t bad = 0;
	for (int i = 1; i <= BELOW; i++)
		top[-i] = PATTERN;
	while (again--) {
#ifdef __x86_64__
		long result = SYS_nanosleep;
		register long size __asm__("r10") = 0;
		__asm__ volatile("syscall" : "+a"(result) : "D"(&t), "S"(0L), "d"(0L), "r"(size)
				 : "rcx", "r11", "memory");
		bad += result != 0;
#elif defined __aarch64__
		register long number __asm__("x8") = SYS_nanosleep;
		register void *result __asm__("x0") = &t;
		register long rest __asm__("x1") = 0;
		__asm__ volatile("svc #0" : "+r"(result) : "r"(number), "r"(rest) : "memory");
		bad += result != 0;
#endif
		for (volatile int spin = 0; spin < 100000; spin++)
			;
	}
	for (int i = 1; i <= BELOW; i++)
		bad += top[-i] != PATTERN;
	return bad;
}

/* Returns how many bytes of a stack's surroundings have changed; `stack` is its first byte. */
static size_t written_around(const unsigned char *stack, size_t size)
{
	size_t bad = 0;
	for (size_t i = 1; i <= 4096; i++)
		bad += (stack[-(long)i] != PATTERN) + (stack[size + i - 1] != PATTERN);
	return bad;
}

static unsigned char *surrounded(size_t size)
{
	unsigned char *all = malloc(size + 2 * 4096);
	memset(all, PATTERN, size + 2 * 4096);
	return all + 4096;
}

static _Thread_local struct worker *on_stack;

static void on_alternate(int signal)
{
	(void)signal;
	on_stack->below += written_below(1) + fat_wrong(700);
}

static void step_stack(struct worker *w)
{
	size_t size = getauxval(AT_MINSIGSTKSZ) + 256 + BELOW + 1024;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, STACK);
	if (!w->stack)
		w->stack = surrounded(size);
	stack_t alternate = { .ss_sp = w->stack, .ss_size = size }, off = { .ss_flags = SS_DISABLE };
	returned("sigaltstack", sigaltstack(&alternate, NULL), 0, 0, 0);
	on_stack = w;
	w->below = 0;
	pthread_kill(pthread_self(), STACK);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* it is delivered here */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (w->below)
		wrong("alternate stack", "bytes below it, or sums", (long)w->below);
	w->below = written_around(w->stack, size);
	if (w->below)
		wrong("alternate stack", "bytes around it", (long)w->below);
	returned("sigaltstack", sigaltstack(&off, NULL), 0, 0, 0);
}

static void coroutine(unsigned high, unsigned low)
{
	struct worker *w = (struct worker *)((uintptr_t)high << 32 | low);
	ucontext_t *both = w->contexts;
	for (;;) {
		w->below = written_below(1) + fat_wrong(700);
		swapcontext(&both[1], &both[0]);
	}
}

static void step_coroutine(struct worker *w)
{
	if (!w->contexts) {
		ucontext_t *both = w->contexts = calloc(2, sizeof *both);
		w->heap_stack = surrounded(COROUTINE);
		getcontext(&both[1]);
		both[1].uc_stack = (stack_t){ .ss_sp = w->heap_stack, .ss_size = COROUTINE };
		makecontext(&both[1], (void (*)(void))coroutine, 2, (unsigned)((uintptr_t)w >> 32),
			    (unsigned)(uintptr_t)w);
	}
	ucontext_t *both = w->contexts;
	for (int i = 0; i < 5; i++) {
		swapcontext(&both[0], &both[1]);
		if (w->below)
			wrong("coroutine", "bytes below its stack pointer, or sums", (long)w->below);
	}
	w->below = written_around(w->heap_stack, COROUTINE);
	if (w->below)
		wrong("coroutine", "bytes around its stack", (long)w->below);
}

/* Adds to counters, one for each CPU, in restartable sequences (rseq(2)). A sequence that went on after
 * another thread had run on its CPU would lose what that thread has added. */
static struct { long count; char pad[56]; } per_cpu[1024];
static atomic_long added;

static void step_rseq(struct worker *w)
{
	long done = 0;
#if defined __x86_64__ && defined RSEQ_SIG
	struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	for (int i = 0; __rseq_size && i < 2000; i++) {
		long aborted = 1;
		__asm__ volatile(
			".pushsection .data.rel.ro,\"aw\"\n.balign 32\n"
			"30: .long 0, 0\n.quad 31f, 32f - 31f, 34f\n.popsection\n"
			"leaq 30b(%%rip), %%rax\n movq %%rax, 8(%[area])\n"
			"31: movl 4(%[area]), %%eax\n shlq $6, %%rax\n addq %[all], %%rax\n"
			"movq (%%rax), %%rdx\n movl $300, %%ecx\n"
			"33: decl %%ecx\n jnz 33b\n incq %%rdx\n movq %%rdx, (%%rax)\n"
			"32: xorl %k[aborted], %k[aborted]\n jmp 35f\n"
			".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
			"34: \n35:\n"
			: [aborted] "+r"(aborted)
			: [area] "r"(area), [all] "r"(per_cpu)
			: "rax", "rcx", "rdx", "memory", "cc");
		done += !aborted;
	}
#endif
	atomic_fetch_add(&added, done);
	usleep(1000 * chance(w, 5));
}

static void step_poker(struct worker *w)
{
	struct timespec t = { 0, MS };
	if (getppid() != parent)
		_exit(1); /* the test was killed */
	for (int i = 0; i < MAX_WORKERS; i++)
		if (workers[i].kind)
			poke_one(w, &workers[i]);
	nanosleep(&t, NULL);
}

static void step_term(struct worker *w)
{
	sigset_t set;
	siginfo_t info;
	(void)w;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	int signal = sigwaitinfo(&set, &info);
	returned("sigwaitinfo for SIGTERM", signal, signal < 0 ? errno : 0, SIGTERM, 0);
	if (signal == SIGTERM)
		atomic_store(&stop, 1);
}

/* The main thread is the one that another process finds first, so it makes all the steps in turn. */
static void step_all(struct worker *w)
{
	static void (*const all[])(struct worker *) = { step_epoll, step_semaphore, step_signal, step_sleep,
		step_poll, step_futex, step_pipe, step_receive, step_ended, step_stack, step_coroutine,
		step_registers, step_fork };
	all[chance(w, sizeof all / sizeof *all)](w);
}

static const struct kind kinds[] = {
	{ "all", step_all, 1 }, { "sums", step_sums, 2 }, { "registers", step_registers, 1 },
	{ "alloc", step_alloc, 1 }, { "fork", step_fork, 1 }, { "spawn", step_spawn, 1 },
	{ "map", step_map, 1 }, { "stack", step_stack, 1 }, { "coroutine", step_coroutine, 1 },
	{ "rseq", step_rseq, 2 }, { "epoll", step_epoll, 1 }, { "semaphore", step_semaphore, 1 },
	{ "signal", step_signal, 1 }, { "sleep", step_sleep, 1 }, { "poll", step_poll, 1 },
	{ "futex", step_futex, 1 }, { "pipe", step_pipe, 1 }, { "receive", step_receive, 1 },
	{ "ended", step_ended, 2 }, { "send", step_send, 1 }, { "term", step_term, 1 },
	/* These two go on until all others have ended. */
	{ "control", step_control, 1 }, { "poker", step_poker, 1 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static atomic_int all_ended;

static int goes_on(const struct kind *kind)
{
	return kind >= &kinds[KINDS - 2] || kind->step == step_sums;
}

static int computes(const struct kind *kind)
{
	void (*step)(struct worker *) = kind->step;
	return step == step_registers || step == step_alloc || step == step_spawn || step == step_map ||
	       step == step_coroutine || step == step_rseq || step == step_stack || step == step_fork;
}

static void *work(void *data)
{
	struct worker *w = data;
	atomic_int *end = goes_on(w->kind) ? &all_ended : &stop;
	sigset_t set;
	sigfillset(&set);
	if (w->kind->step == step_sums) {
		sigdelset(&set, ANYONE);
		sigdelset(&set, w == sums[0] ? ORDERED : TICK);
	}
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	w->tid = (pid_t)syscall(SYS_gettid);
	while (!atomic_load(end)) {
		w->kind->step(w);
		w->steps++;
	}
	return NULL;
}

static void handle(int signal, void (*plain)(int), void (*full)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_flags = flags };
	if (plain)
		action.sa_handler = plain;
	else
		action.sa_sigaction = full, action.sa_flags |= SA_SIGINFO;
	sigfillset(&action.sa_mask);
	sigaction(signal, &action, NULL);
}

/* Starts the threads, and runs the first worker in this one. Returns how many workers there are. */
static int start(void)
{
	int count = 0;
	pthread_attr_t small;
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < kinds[kind].count && !(quiet && computes(&kinds[kind])); i++) {
			struct worker *w = &workers[count];
			w->index = count++;
			w->seed = (unsigned)(now() + count);
			w->kind = &kinds[kind];
			set_up_waits(w);
			if (w->kind->step == step_sums)
				sums[i] = w;
		}
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 256 << 10);
	workers[0].thread = pthread_self();
	for (int i = 1; i < count; i++)
		if (pthread_create(&workers[i].thread, &small, work, &workers[i]))
			wrong("pthread_create", strerror(errno), errno);
	return count;
}

static int64_t start_timer(timer_t *timer)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TICK };
	struct itimerspec each = { { 0, TICK_NS }, { 0, TICK_NS } };
	while (!*(volatile pid_t *)&sums[1]->tid)
		usleep(100);
	event._sigev_un._tid = sums[1]->tid;
	if (timer_create(CLOCK_MONOTONIC, &event, timer))
		wrong("timer_create", strerror(errno), errno);
	int64_t began = now();
	if (timer_settime(*timer, 0, &each, NULL))
		wrong("timer_settime", strerror(errno), errno);
	return began;
}

/* Waits until all signals have arrived and all ticks of the timer were counted. Returns the ticks due. */
static long finish_signals(timer_t timer, int64_t began)
{
	long due = (now() - began) / TICK_NS;
	int all = 0;
	for (int patience = 0; patience < 5000 && !all; patience++) {
		usleep(1000);
		all = atomic_load(&ordered) >= atomic_load(&sent) && atomic_load(&anyone) >= atomic_load(&sent) &&
		      atomic_load(&ticks) >= due;
	}
	/* In this order: more ticks may come before the time is read. */
	long counted = atomic_load(&ticks), most = (now() - began) / TICK_NS;
	if (atomic_load(&ordered) != atomic_load(&sent))
		wrong("signals to a thread", "more or less than were sent", ordered - sent);
	if (atomic_load(&anyone) != atomic_load(&sent))
		wrong("signals to the process", "more or less than were sent", anyone - sent);
	if (counted < due || counted > most)
		wrong("timer", "ticks more or less than are due", counted - due);
	timer_delete(timer);
	return due;
}

static void print_late(const char *name, int which)
{
	printf("\"%s\":{\"most_us\":%ld,\"below_us_100_1000_2000_5000_10000_20000_50000\":[", name,
	       atomic_load(&most_late[which]) / 1000);
	for (int i = 0; i < BUCKETS; i++)
		printf("%s%ld", i ? "," : "", atomic_load(&late[which][i]));
	printf("]},");
}

static void report(int count, double seconds, long due)
{
	printf("{\"errors\":%d,\"early\":%d,\"first\":\"", atomic_load(&errors), atomic_load(&early));
	for (const char *at = first; *at; at++)
		if (*at != '"' && *at != '\\')
			putchar(*at);
	printf("\",\"seconds\":%.1f,\"threads\":%d,\"sent\":%d,\"ordered\":%d,\"anyone\":%d,\"ticks\":%ld,"
	       "\"ticks_due\":%ld,\"late\":{",
	       seconds, count, atomic_load(&sent), atomic_load(&ordered), atomic_load(&anyone),
	       atomic_load(&ticks), due);
	print_late("control", 0);
	print_late("waits", 1);
	printf("\"unit\":\"us\"},\"steps\":{");
	for (int i = 0; i < count; i++)
		printf("%s\"%s%d\":%lu", i ? "," : "", workers[i].kind->name, i, (unsigned long)workers[i].steps);
	printf("}}\n");
	fflush(stdout);
}

/* Waits for the end of a thread. One that waits for ever has missed something. */
static void join(struct worker *w)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += 10;
	if (!pthread_timedjoin_np(w->thread, NULL, &t))
		return;
	wrong(w->kind->name, "hangs in a wait of kind", atomic_load(&w->want));
	report(MAX_WORKERS < w->index ? MAX_WORKERS : w->index + 1, 0, 0);
	_exit(1);
}

int main(int argc, char **argv)
{
	char byte;
	timer_t timer;
	long in_slots = 0;
	sigset_t set;
	if (argc > 1 && !strcmp(argv[1], "child"))
		return fat_wrong(500) ? 1 : 0;
	quiet = argc > 1 && !strcmp(argv[1], "quiet");
	parent = getppid();
	self = realpath("/proc/self/exe", NULL);
	/* One heap and a fixed threshold, so that what malloc has mapped is the same in each run. */
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	/* The semaphores vanish with their namespace, even if this process is killed. */
	(void)!unshare(CLONE_NEWIPC);
	semaphores = semget(IPC_PRIVATE, MAX_WORKERS, 0600 | IPC_CREAT);
	if (semaphores < 0)
		wrong("semget", strerror(errno), errno);
	sigfillset(&set);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	handle(ORDERED, NULL, on_ordered, SA_RESTART);
	handle(ANYONE, on_anyone, NULL, SA_RESTART);
	handle(TICK, NULL, on_tick, SA_RESTART);
	handle(STACK, on_alternate, NULL, SA_ONSTACK | SA_RESTART);
	handle(ENDS, on_end, NULL, 0);
	int count = start();
	int64_t began = start_timer(&timer);
	puts("ready");
	fflush(stdout);
	work(&workers[0]);
	for (int i = 1; i < count; i++)
		if (!goes_on(workers[i].kind))
			join(&workers[i]);
	double seconds = (double)(now() - began) / 1e9;
	long due = finish_signals(timer, began), slots = atomic_load(&added);
	atomic_store(&all_ended, 1);
	for (int i = 1; i < count; i++)
		if (goes_on(workers[i].kind))
			join(&workers[i]);
	for (int i = 0; i < 1024; i++)
		in_slots += per_cpu[i].count;
	if (in_slots != slots)
		wrong("restartable sequences", "were not aborted", slots - in_slots);
	for (int i = 0; i < count; i++) {
		struct worker *w = &workers[i];
		if (w->stack)
			free(w->stack - 4096);
		if (w->heap_stack)
			free(w->heap_stack - 4096);
		free(w->contexts);
		close_waits(w);
	}
	semctl(semaphores, 0, IPC_RMID);
	report(count, seconds, due);
	while (read(0, &byte, 1) > 0)
		;
	return atomic_load(&errors) ? 1 : 0;
}
