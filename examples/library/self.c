/* SPDX-License-Identifier: Apache-2.0 */
/* A program that lifts itself: cc self.c $(pkg-config --cflags --libs hugelift) */
#include <hugelift.h>
#include <stdio.h>

static void log_line(void *stream, int level, const char *message)
{
	fprintf(stream, "%s%s\n", level <= HUGELIFT_LOG_WARNING ? "warning: " : "", message);
}

int main(void)
{
	struct hugelift_options options;
	struct hugelift_report *report;

	hugelift_options_init(&options, sizeof options);
	options.log = log_line;
	options.log_context = stdout;
	int code = hugelift_lift_self(&options, &report);
	if (code != HUGELIFT_OK) {
		/* The program goes on as it is. */
		printf("not lifted: %s\n", hugelift_strerror(code));
		return 1;
	}
	printf("%llu bytes of text on huge pages\n",
	       (unsigned long long)hugelift_report_huge_bytes(report, HUGELIFT_PART_TEXT));
	hugelift_report_free(report);
	return 0;
}
