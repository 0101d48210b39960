/* SPDX-License-Identifier: Apache-2.0 */
/* Prints all that a program inherits or can know of itself, in a form that is the same
 * in each run: the tests compare bare and lifted runs.
 *
 *   state          everything but addresses
 *   state quick    the same, but waits only shortly for late events
 *   state fixed    the auxiliary vector and the mappings too (for setarch -R)
 */
#define _GNU_SOURCE
#include "fat.h"
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
/* Not malloc: the heap is one of the things to look at. */
static char buffer[1 << 20];

static char *slurp(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t got;
	if (fd < 0)
		return NULL;
	while (n < sizeof buffer - 1 && (got = read(fd, buffer + n, sizeof buffer - 1 - n)) > 0)
		n += (size_t)got;
	close(fd);
	buffer[n] = 0;
	return buffer;
}

static void show(const char *path)
{
	char *text = slurp(path);
	printf("%s: %s%s", path, text ? text : strerror(errno), text && strchr(text, '\n') ? "" : "\n");
}

/* A file with NULs in it, byte for byte. */
static void show_bytes(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	printf("%s:", path);
	for (ssize_t n; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0;)
		for (ssize_t i = 0; i < n; i++)
			printf(buffer[i] > ' ' && buffer[i] < 127 ? " %c" : " %02hhx", buffer[i]);
	printf("\n");
	if (fd >= 0)
		close(fd);
}

static void show_status(void)
{
	/* What differs from run to run; the rest is compared. */
	static const char *not[] = { "Pid:", "Tgid:", "Ngid:", "NSpid:", "NStgid:", "NSpgid:", "SigQ:",
		"VmPeak:", "VmSize:", "VmHWM:", "VmRSS:", "VmData:", "VmStk:", "VmExe:", "VmLib:", "VmPTE:",
		"VmSwap:", "Rss", "Hugetlb", "voluntary_ctxt", "nonvoluntary_ctxt", NULL };
	char *line, *rest = slurp("/proc/self/status");
	if (!rest) {
		printf("no /proc\n");
		return;
	}
	while ((line = strsep(&rest, "\n")) && *line) {
		int skip = 0;
		for (const char **n = not; *n; n++)
			skip |= !strncmp(line, *n, strlen(*n));
		if (!skip)
			printf("%s\n", line);
	}
}

static void show_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	char from[64], to[4096];
	for (struct dirent *e; dir && (e = readdir(dir));) {
		int fd = atoi(e->d_name);
		if (e->d_name[0] == '.')
			continue;
		snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(from, to, sizeof to - 1);
		if (n < 0)
			continue;
		to[n] = 0;
		/* The numbers of pipes and processes differ between runs. */
		if (fd == dirfd(dir))
			strcpy(to, "this directory");
		if (strchr(to, '['))
			*strchr(to, '[') = 0;
		printf("fd %d: %s, flags %x, status %x, position %lld\n", fd, to, fcntl(fd, F_GETFD),
		       fcntl(fd, F_GETFL), (long long)lseek(fd, 0, SEEK_CUR));
	}
	if (dir)
		closedir(dir);
	else
		for (int fd = 0; fd < 64; fd++)
			if (fcntl(fd, F_GETFD) >= 0)
				printf("fd %d\n", fd);
}

static void show_children(const char *when)
{
	DIR *dir = opendir("/proc/self/task");
	char path[300];
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/children", e->d_name);
		char *children = slurp(path);
		printf("children %s: '%s'\n", when, children ? children : "?");
	}
	if (dir)
		closedir(dir);
	int status;
	pid_t got = waitpid(-1, &status, __WALL | WNOHANG);
	printf("waitpid %s: %s\n", when, got >= 0 ? "A CHILD" : errno == ECHILD ? "none" : strerror(errno));
}

static void show_signals(void)
{
	for (int n = 1; n < NSIG; n++) {
		struct sigaction now;
		if (sigaction(n, NULL, &now) || now.sa_handler == SIG_DFL)
			continue;
		printf("signal %d: %s, flags %x\n", n, now.sa_handler == SIG_IGN ? "ignored" : "handler",
		       now.sa_flags);
	}
	stack_t stack;
	sigaltstack(NULL, &stack);
	printf("sigaltstack: flags %x, size %zu\n", stack.ss_flags, stack.ss_size);
	for (int which = 0; which < 3; which++) {
		struct itimerval timer = { 0 };
		getitimer(which, &timer);
		printf("itimer %d: %s, every %ld.%06ld\n", which,
		       timer.it_value.tv_sec || timer.it_value.tv_usec ? "armed" : "off",
		       (long)timer.it_interval.tv_sec, (long)timer.it_interval.tv_usec);
	}
}

static void show_limits(void)
{
	for (int which = 0; which < RLIM_NLIMITS; which++) {
		struct rlimit limit = { 0 };
		getrlimit(which, &limit);
		printf("rlimit %d: %llx %llx\n", which, (unsigned long long)limit.rlim_cur,
		       (unsigned long long)limit.rlim_max);
	}
	struct sched_param param = { 0 };
	sched_getparam(0, &param);
	printf("nice %d, policy %d, priority %d, io %ld\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0),
	       param.sched_priority, syscall(SYS_ioprio_get, 1, 0));
	cpu_set_t cpus;
	sched_getaffinity(0, sizeof cpus, &cpus);
	printf("cpus %d:", CPU_COUNT(&cpus));
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &cpus))
			printf(" %d", i);
	mode_t mask = umask(0);
	umask(mask);
	printf("\numask %o\n", (unsigned)mask);
}

static void show_prctl(void)
{
	int deathsig = -1, subreaper = -1;
	prctl(PR_GET_PDEATHSIG, &deathsig);
	prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
	printf("pdeathsig %d, subreaper %d, dumpable %d, keepcaps %d, no_new_privs %d, seccomp %d, slack %d, "
	       "thp_disable %d, securebits %d\n",
	       deathsig, subreaper, prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
	       prctl(PR_GET_SECCOMP), prctl(PR_GET_TIMERSLACK), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0),
	       prctl(PR_GET_SECUREBITS));
}

static int is_address(unsigned long type)
{
	switch (type) {
	case AT_PHDR: case AT_BASE: case AT_ENTRY: case AT_RANDOM: case AT_EXECFN: case AT_PLATFORM:
	case AT_BASE_PLATFORM: case AT_SYSINFO_EHDR:
		return 1;
	}
	return 0;
}

static void show_auxv(int fixed)
{
	char *text = slurp("/proc/self/auxv");
	const unsigned long *entry = (const unsigned long *)(void *)text;
	for (; text && entry[0] != AT_NULL; entry += 2) {
		/* No entry is skipped, not even those with high numbers such as AT_RSEQ_*. */
		int same = getauxval(entry[0]) == entry[1];
		printf("auxv %lu: ", entry[0]);
		if (fixed || !is_address(entry[0]))
			printf("%lx ", entry[1]);
		printf("%s\n", same ? "" : "GETAUXVAL DIFFERS");
	}
	const char *name = (const char *)getauxval(AT_EXECFN);
	printf("execfn %s\n", name ? name : "?");
}

int main(int argc, char **argv)
{
	int fixed = argc > 1 && !strcmp(argv[1], "fixed");
	/* First of all, before stdio takes memory of its own. */
	static char maps[1 << 18];
	if (fixed && slurp("/proc/self/maps"))
		memcpy(maps, buffer, sizeof maps - 1);
	static char out[1 << 16];
	setvbuf(stdout, out, _IOFBF, sizeof out);

	show_fds();
	show_children("at first");
	show_status();
	show_signals();
	show_limits();
	show_prctl();
	printf("wrong %zu\n", fat_wrong(16));
	printf("parent %d, leader %s, session %d, session leader %s, foreground %s\n", getppid(),
	       getpgrp() == getpid() ? "yes" : "no", getsid(0), getsid(0) == getpid() ? "yes" : "no",
	       tcgetpgrp(0) == getpgrp() ? "yes" : "no");
	for (int i = 0; i < argc; i++)
		printf("argv[%d] %s\n", i, argv[i]);
	for (char **e = environ; *e; e++)
		printf("env %s\n", *e);
	char *cwd = getcwd(buffer, sizeof buffer);
	printf("cwd %s\n", cwd ? cwd : strerror(errno));
	ssize_t n = readlink("/proc/self/exe", buffer, sizeof buffer - 1);
	printf("exe %.*s\n", n > 0 ? (int)n : 1, n > 0 ? buffer : "?");
	show_bytes("/proc/self/environ");
	show_bytes("/proc/self/cmdline");
	static const char *files[] = { "/proc/self/comm", "/proc/self/cgroup", "/proc/self/personality",
		"/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/self/timerslack_ns",
		"/proc/self/loginuid", "/proc/self/sessionid", "/proc/self/uid_map", "/proc/self/setgroups",
		"/proc/self/cpuset", "/proc/self/limits", "/proc/self/timers", "/proc/self/autogroup", NULL };
	for (const char **file = files; *file; file++)
		show(*file);
	static const char *spaces[] = { "cgroup", "ipc", "mnt", "net", "pid", "user", "uts", NULL };
	for (const char **space = spaces; *space; space++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/ns/%s", *space);
		n = readlink(path, buffer, sizeof buffer - 1);
		printf("namespace %.*s\n", n > 0 ? (int)n : 1, n > 0 ? buffer : "?");
	}
	show_auxv(fixed);
	if (fixed)
		printf("maps:\n%s", maps);
	/* Waits for what may come after the start: an orphan that becomes a child, a SIGCHLD. */
	const char *pace = argc > 1 ? argv[1] : "";
	usleep(!strcmp(pace, "quick") ? 10000 : !strcmp(pace, "slow") ? 10000000 : 100000);
	show_children("later");
	sigset_t pending;
	sigpending(&pending);
	printf("pending later:");
	for (int i = 1; i < NSIG; i++)
		if (sigismember(&pending, i) == 1)
			printf(" %d", i);
	printf("\n");
	return fflush(stdout) ? 1 : 0;
}
