/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls in which the threads of live.c wait: with a timeout, which must hold, without one,
 * until the poker thread ends the wait, and until a signal handler has run, which must end the call. */
#include "live.h"
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>

/* Milliseconds from the begin of a call until a signal that was sent must have ended it. A slow machine may take
 * seconds to send it. */
#ifdef MAY_BE_LATE
enum { LONG_SINCE = 30000 };
#else
enum { LONG_SINCE = 3000 };
#endif

static void set_up_waits(struct worker *w)
{
	struct epoll_event events = { .events = EPOLLIN };
	struct timeval soon = { 0, 250000 };
	w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (w->event < 0 || w->epoll < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->event, &events) ||
	    pipe(w->pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, w->socket) ||
	    setsockopt(w->socket[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon))
		wrong("descriptors", strerror(errno), errno);
}

static void close_waits(struct worker *w)
{
	int all[] = { w->event, w->epoll, w->pipe[0], w->pipe[1], w->socket[0], w->socket[1] };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		close(all[i]);
}

/* A call with a timeout, in which nothing happens. Each returns `want`, or -1 with `error`. */
#define TIMED(name, timeout, coarse, want, error, ...)                     \
	do {                                                               \
		int64_t queued_ = queued(), began_ = now();                \
		errno = 0;                                                 \
		long result_ = (long)(__VA_ARGS__);                        \
		int error_ = errno;                                        \
		returned(name, result_, result_ == -1 ? error_ : 0, want, error); \
		if (result_ == (want))                                     \
			timed(name, began_, queued_, timeout, coarse);     \
	} while (0)

static void step_epoll(struct worker *w)
{
	struct epoll_event events;
	int64_t time = some_time(w) / MS * MS;
	uint64_t value = 0;
	if (chance(w, 2)) {
		TIMED("epoll_wait", time, 0, 0, 0, epoll_wait(w->epoll, &events, 1, (int)(time / MS)));
		return;
	}
	want(w, EVENT);
	int ready = epoll_wait(w->epoll, &events, 1, -1);
	returned("epoll_wait -1", ready, ready < 0 ? errno : 0, 1, 0);
	got(w, "epoll_wait -1");
	returned("eventfd", read(w->event, &value, sizeof value), 0, sizeof value, 0);
	if (value != 1)
		wrong("eventfd", "value", (long)value);
}

static void step_semaphore(struct worker *w)
{
	struct sembuf down = { (unsigned short)w->index, -1, 0 };
	int64_t time = some_time(w);
	struct timespec t = spec(time);
	if (chance(w, 2)) {
		TIMED("semtimedop", time, 0, -1, EAGAIN, semtimedop(semaphores, &down, 1, &t));
		return;
	}
	want(w, SEMAPHORE);
	int result = semop(semaphores, &down, 1);
	returned("semop", result, result ? errno : 0, 0, 0);
	got(w, "semop");
}

static void step_signal(struct worker *w)
{
	siginfo_t info;
	sigset_t set;
	int64_t time = some_time(w);
	struct timespec t = spec(time);
	sigemptyset(&set);
	sigaddset(&set, WAITED);
	if (chance(w, 2)) {
		TIMED("sigtimedwait", time, 0, -1, EAGAIN, sigtimedwait(&set, &info, &t));
		return;
	}
	want(w, SIGNAL);
	int signal = sigwaitinfo(&set, &info);
	returned("sigwaitinfo", signal, signal < 0 ? errno : 0, WAITED, 0);
	got(w, "sigwaitinfo");
	if (signal == WAITED && info.si_value.sival_int != (int)w->pokes++)
		wrong("sigwaitinfo", "the number that was sent", info.si_value.sival_int);
}

static void step_sleep(struct worker *w)
{
	int64_t time = some_time(w), until = now() + time;
	struct timespec t = spec(time), end = spec(until), left;
	if (chance(w, 2))
		TIMED("nanosleep", time, 0, 0, 0, nanosleep(&t, &left));
	else
		TIMED("clock_nanosleep", until - began_, 0, 0, 0,
		      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL));
}

static void step_poll(struct worker *w)
{
	int64_t time = some_time(w) / MS * MS;
	struct timespec t = spec(time);
	struct timeval v = { time / 1000000000, time % 1000000000 / 1000 };
	struct pollfd one = { .fd = w->pipe[0], .events = POLLIN };
	fd_set set;
	sigset_t all;
	sigfillset(&all);
	FD_ZERO(&set);
	FD_SET(w->pipe[0], &set);
	switch (chance(w, 3)) {
	case 0:
		TIMED("poll", time, 0, 0, 0, poll(&one, 1, (int)(time / MS)));
		break;
	case 1:
		TIMED("ppoll", time, 0, 0, 0, ppoll(&one, 1, &t, &all));
		break;
	default:
		TIMED("select", time, 0, 0, 0, select(w->pipe[0] + 1, &set, NULL, NULL, &v));
	}
}

static void step_futex(struct worker *w)
{
	static _Thread_local pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	int64_t time = some_time(w);
	struct timespec t = spec(time);
	if (chance(w, 2)) {
		uint32_t word = 1;
		TIMED("futex", time, 0, -1, ETIMEDOUT,
		      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &t, NULL, 0));
		return;
	}
	pthread_cond_t never;
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&never, &clock);
	pthread_mutex_lock(&mutex);
	int64_t until = now() + time;
	t = spec(until);
	TIMED("pthread_cond_timedwait", until - began_, 0, ETIMEDOUT, 0,
	      pthread_cond_timedwait(&never, &mutex, &t));
	pthread_mutex_unlock(&mutex);
	pthread_cond_destroy(&never);
}

static void step_pipe(struct worker *w)
{
	uint32_t number = 0;
	want(w, PIPE);
	long count = read(w->pipe[0], &number, sizeof number);
	returned("read of a pipe", count, count < 0 ? errno : 0, sizeof number, 0);
	got(w, "read of a pipe");
	if (number != w->pokes++)
		wrong("read of a pipe", "the number that was written", number);
}

static void step_receive(struct worker *w)
{
	char byte;
	/* The kernel counts this timeout in clock ticks. */
	TIMED("recv with SO_RCVTIMEO", 250 * (int64_t)MS, 10 * MS, -1, EAGAIN, recv(w->socket[0], &byte, 1, 0));
}

/* Waits in a call until a signal handler without SA_RESTART has run, which must end the call. */
static void step_ended(struct worker *w)
{
	static const char *const names[] = { "read", "epoll_wait", "semop", "nanosleep", "sigsuspend", "poll" };
	/* As glibc makes them. */
#ifdef SYS_poll
	static const long numbers[] = { SYS_read, SYS_epoll_wait, SYS_semop, SYS_clock_nanosleep,
		SYS_rt_sigsuspend, SYS_poll };
#else
	static const long numbers[] = { SYS_read, SYS_epoll_pwait, SYS_semop, SYS_clock_nanosleep,
		SYS_rt_sigsuspend, SYS_ppoll };
#endif
	unsigned which = chance(w, 6);
	struct sembuf down = { (unsigned short)w->index, -1, 0 };
	struct epoll_event events;
	struct timespec t = { 1000, 0 };
	struct pollfd one = { .fd = w->pipe[0], .events = POLLIN };
	char byte;
	long result = 0;
	sigset_t set, only;
	sigemptyset(&set);
	sigaddset(&set, ENDS);
	int handled = atomic_load(&w->handled);
	atomic_store(&w->want_call, numbers[which]);
	atomic_store(&w->since, now());
	want(w, END);
	pthread_sigmask(SIG_UNBLOCK, &set, &only);
	switch (which) {
	case 0: result = read(w->pipe[0], &byte, 1); break;
	case 1: result = epoll_wait(w->epoll, &events, 1, -1); break;
	case 2: result = syscall(SYS_semop, semaphores, &down, 1); break;
	case 3:
		errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
		result = errno ? -1 : 0;
		break;
	case 4:
		set = only;
		sigdelset(&set, ENDS);
		result = sigsuspend(&set);
		break;
	default: result = poll(&one, 1, -1);
	}
	int error = errno;
	if (atomic_load(&w->want) == END)
		wrong(names[which], "ended before a signal was sent", error);
	returned(names[which], result, error, -1, EINTR);
	pthread_sigmask(SIG_SETMASK, &only, NULL);
	handled = atomic_load(&w->handled) - handled;
	if (handled != 1)
		wrong(names[which], "number of signals handled", handled);
	atomic_fetch_add(&w->ended, 1);
}

/* Returns whether the worker sleeps in the call that a signal is to end. */
static int is_in_call(struct worker *w)
{
	char path[64], text[256] = "", state = 0;
	long number = -1;
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", w->tid);
	FILE *file = fopen(path, "re");
	if (file && fgets(text, sizeof text, file))
		sscanf(text, "%ld", &number);
	if (file)
		fclose(file);
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", w->tid);
	file = fopen(path, "re");
	if (file && fgets(text, sizeof text, file))
		sscanf(strrchr(text, ')') + 2, "%c", &state);
	if (file)
		fclose(file);
	/* A stopped nanosleep or poll goes on as restart_syscall. */
	return (number == atomic_load(&w->want_call) || number == SYS_restart_syscall) && state == 'S';
}

/* Ends the wait of one worker, if it waits for the poker. */
static void poke_one(struct worker *poker, struct worker *w)
{
	uint64_t one = 1;
	struct sembuf up = { (unsigned short)w->index, 1, 0 };
	enum want what = (enum want)atomic_load(&w->want);
	static uint32_t numbers[MAX_WORKERS];
	static int ended[MAX_WORKERS];
	if (what == NOTHING && atomic_load(&w->want_call) && atomic_load(&w->ended) < ended[w->index] &&
	    now() - atomic_load(&w->since) > LONG_SINCE * (int64_t)MS &&
	    atomic_load(&w->handled) >= ended[w->index] && is_in_call(w)) {
		/* The handler has run, and the call was made again. */
		wrong("a signal", "did not end system call", atomic_load(&w->want_call));
		atomic_store(&w->since, now());
		pthread_kill(w->thread, ENDS);
	}
	if (what == NOTHING || (chance(poker, 8) && !atomic_load(&stop)))
		return;
	if (what == END && !is_in_call(w))
		return;
	atomic_store(&w->want, NOTHING);
	switch (what) {
	case EVENT:
		returned("write of an eventfd", write(w->event, &one, sizeof one), 0, sizeof one, 0);
		break;
	case SEMAPHORE:
		returned("semop +1", semop(semaphores, &up, 1), 0, 0, 0);
		break;
	case PIPE:
		returned("write of a pipe", write(w->pipe[1], &numbers[w->index], sizeof *numbers), 0,
			 sizeof *numbers, 0);
		numbers[w->index]++;
		break;
	case SIGNAL:
		pthread_sigqueue(w->thread, WAITED, (union sigval){ .sival_int = (int)numbers[w->index]++ });
		break;
	case END:
		ended[w->index]++;
		pthread_kill(w->thread, ENDS);
		break;
	case NOTHING:
		break;
	}
}
