/* SPDX-License-Identifier: Apache-2.0 */
/* setup WORD... -- PROG ARGS: changes this process as the words say and becomes PROG, as
 * a shell, a service manager or a sandbox would do before it starts PROG. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define DIE(what) do { perror("setup: " what); exit(99); } while (0)
#define DENY (SECCOMP_RET_ERRNO | EPERM)
#define MUST(call) do { if ((call) < 0) DIE(#call); } while (0)

/* The system call `number` fails with EPERM from now on, or kills the process that makes it. */
static void forbid(unsigned number, unsigned action)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	/* An unprivileged process needs no_new_privs for it; root does not. */
	if (geteuid())
		MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void mask(const char *numbers, int pend)
{
	sigset_t set;
	sigemptyset(&set);
	for (char *end; *numbers; numbers = *end ? end + 1 : end)
		sigaddset(&set, (int)strtol(numbers, &end, 10));
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	for (int n = 1; pend && n < NSIG; n++)
		if (sigismember(&set, n) == 1)
			raise(n);
}

static void set(char *word)
{
	char *value = strchr(word, '=');
	long n = 0;
	if (value) {
		*value++ = 0;
		n = strtol(value, NULL, 0);
	}
	if (!strcmp(word, "block")) {
		mask(value, 0);
	} else if (!strcmp(word, "pend")) {
		mask(value, 1);
	} else if (!strcmp(word, "ignore")) {
		signal((int)n, SIG_IGN);
	} else if (!strcmp(word, "default")) {
		signal((int)n, SIG_DFL);
	} else if (!strcmp(word, "nice")) {
		MUST(setpriority(PRIO_PROCESS, 0, (int)n));
	} else if (!strcmp(word, "umask")) {
		umask((mode_t)strtol(value, NULL, 8));
	} else if (!strcmp(word, "rlimit")) {
		/* rlimit=NUMBER:SOFT:HARD */
		struct rlimit limit;
		char *end;
		(void)strtol(value, &end, 10);
		limit.rlim_cur = strtoull(end + 1, &end, 0);
		limit.rlim_max = strtoull(end + 1, NULL, 0);
		MUST(setrlimit((int)n, &limit));
	} else if (!strcmp(word, "pdeathsig")) {
		MUST(prctl(PR_SET_PDEATHSIG, n));
	} else if (!strcmp(word, "subreaper")) {
		MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	} else if (!strcmp(word, "nnp")) {
		MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	} else if (!strcmp(word, "nothp")) {
		MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	} else if (!strcmp(word, "setsid")) {
		MUST(setsid());
	} else if (!strcmp(word, "close")) {
		MUST(close((int)n));
	} else if (!strcmp(word, "fd")) {
		int fd = open("/dev/zero", O_RDWR);
		MUST(fd);
		MUST(dup2(fd, (int)n));
		if (fd != n)
			close(fd);
	} else if (!strcmp(word, "alarm")) {
		alarm((unsigned)n);
	} else if (!strcmp(word, "cputimers")) {
		struct itimerval each = { { 900, 0 }, { 1000, 0 } };
		MUST(setitimer(ITIMER_VIRTUAL, &each, NULL));
		MUST(setitimer(ITIMER_PROF, &each, NULL));
	} else if (!strcmp(word, "affinity")) {
		cpu_set_t cpus;
		CPU_ZERO(&cpus);
		CPU_SET((size_t)n, &cpus);
		MUST(sched_setaffinity(0, sizeof cpus, &cpus));
	} else if (!strcmp(word, "slack")) {
		MUST(prctl(PR_SET_TIMERSLACK, n));
	} else if (!strcmp(word, "batch")) {
		struct sched_param param = { 0 };
		MUST(sched_setscheduler(0, SCHED_BATCH, &param));
	} else if (!strcmp(word, "oom")) {
		FILE *f = fopen("/proc/self/oom_score_adj", "w");
		if (!f || fprintf(f, "%ld", n) < 0 || fclose(f))
			DIE("oom_score_adj");
	} else if (!strcmp(word, "coredump")) {
		FILE *f = fopen("/proc/self/coredump_filter", "w");
		if (!f || fprintf(f, "%ld", n) < 0 || fclose(f))
			DIE("coredump_filter");
	} else if (!strcmp(word, "chdir")) {
		MUST(chdir(value));
	} else if (!strcmp(word, "noptrace")) {
		forbid(SYS_ptrace, DENY);
	} else if (!strcmp(word, "killptrace")) {
		forbid(SYS_ptrace, SECCOMP_RET_KILL_PROCESS);
	} else if (!strcmp(word, "killvmread")) {
		forbid(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS);
	} else if (!strcmp(word, "novmread")) {
		forbid(SYS_process_vm_readv, DENY);
		forbid(SYS_process_vm_writev, DENY);
	} else if (!strcmp(word, "nomremap")) {
		forbid(SYS_mremap, DENY);
	} else if (!strcmp(word, "nomadvise")) {
		forbid(SYS_madvise, DENY);
	} else if (!strcmp(word, "noperf")) {
		forbid(SYS_perf_event_open, DENY);
	} else if (!strcmp(word, "nopidfd")) {
		forbid(SYS_pidfd_open, DENY);
	} else if (!strcmp(word, "nosync")) {
		forbid(SYS_sync, DENY);
	} else {
		fprintf(stderr, "setup: %s?\n", word);
		exit(99);
	}
}

int main(int argc, char **argv)
{
	int i = 1;
	for (; i < argc && strcmp(argv[i], "--"); i++)
		set(argv[i]);
	if (i + 1 >= argc)
		return 99;
	execvp(argv[i + 1], argv + i + 1);
	perror(argv[i + 1]);
	return 98;
}
