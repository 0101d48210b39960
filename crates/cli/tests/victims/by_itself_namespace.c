/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose child is process 1 of a PID namespace of its own, while /proc is still that of its parent: there
 * /proc/1 is another process. The child lifts and restores itself. Exit status 77: no namespace can be made. */
#define _GNU_SOURCE
#include <hugelift.h>

#include "fat.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void log_line(void *context, int level, const char *message)
{
	(void)context;
	if (level <= HUGELIFT_LOG_WARNING)
		puts(message);
}

int main(void)
{
	if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) {
		perror("unshare");
		return 77;
	}
	pid_t pid = fork();
	if (pid == 0) {
		struct hugelift_options options;
		struct hugelift_report *report;
		int bad = getpid() != 1;
		hugelift_options_init(&options, sizeof options);
		options.backing = HUGELIFT_BACKING_THP;
		options.log = log_line;
		for (int round = 0; round < 2; round++) {
			int code = hugelift_lift_self(&options, &report);
			if (code || hugelift_report_huge_bytes(report, HUGELIFT_PART_TEXT) < 4 << 20)
				bad |= printf("lift: %d %s\n", code, hugelift_report_summary(report));
			hugelift_report_free(report);
			code = hugelift_restore_self(&options, &report);
			if (code || hugelift_find(fat_code + (3 << 20), NULL, 0))
				bad |= printf("restore: %d %s\n", code, hugelift_report_summary(report));
			hugelift_report_free(report);
		}
		bad |= fat_wrong(64) != 0;
		fflush(stdout);
		_exit(bad != 0);
	}
	int status;
	if (waitpid(pid, &status, 0) != pid || status) {
		printf("child: status %x\n", status);
		return 1;
	}
	puts("ok");
	return 0;
}
