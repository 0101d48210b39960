/* SPDX-License-Identifier: Apache-2.0 */
/* A program that calls each function of the library, also in ways that fail, and looks whether errno stays. */
#define _GNU_SOURCE
#include <hugelift.h>
#include <elfremapper.h>
#include <large_page.h>

#include "fat.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int bad;

#define SAME(call)                                                                             \
	do {                                                                                   \
		errno = 4711;                                                                  \
		(void)(call);                                                                  \
		if (errno != 4711)                                                             \
			printf("%s: errno is %d\n", #call, errno), bad = 1;                   \
	} while (0)

static void log_line(void *context, int level, const char *message)
{
	(void)context, (void)level, (void)message;
	errno = 99;
}

static void logger(const char *message)
{
	(void)message;
	errno = 98;
}

int main(void)
{
	struct hugelift_options options;
	struct hugelift_report *report = NULL;
	struct hugelift_range range;
	bool enabled;
	const char *malformed[] = {"[", NULL};

	SAME(hugelift_version());
	SAME(hugelift_strerror(-1));
	SAME(hugelift_options_init(&options, sizeof options));
	SAME(hugelift_options_init(&options, 3));
	hugelift_options_init(&options, sizeof options);
	options.backing = HUGELIFT_BACKING_THP;
	options.log = log_line;
	options.log_level = HUGELIFT_LOG_DEBUG;
	SAME(hugelift_restore_self(&options, NULL));
	SAME(hugelift_lift_range(fat_code, fat_code + (4 << 20), &options, NULL));
	SAME(hugelift_lift_range(&options, NULL, &options, NULL));
	SAME(hugelift_lift_self(&options, &report));
	if (!report)
		puts("no report"), bad = 1;
	SAME(hugelift_report_huge_bytes(report, 1));
	SAME(hugelift_report_liftable_bytes(report, 1));
	SAME(hugelift_report_summary(report));
	SAME(hugelift_report_json(report));
	SAME(hugelift_report_free(report));
	SAME(hugelift_find(fat_code + (3 << 20), &range, sizeof range));
	SAME(hugelift_ranges(&range, 1, sizeof range));
	SAME(hugelift_ranges(NULL, 1, sizeof range));
	SAME(hugelift_restore_self(&options, NULL));
	options.parts = HUGELIFT_PART_DATA;
	SAME(hugelift_lift_self(&options, &report));
	options.parts = HUGELIFT_PART_TEXT;
	options.objects = malformed;
	SAME(hugelift_lift_self(&options, &report));

	SAME(MapStatusStr(map_ok, true));
	SAME(IsLargePagesEnabled(&enabled));
	SAME(MapDSOToLargePages("["));
	SAME(MapDSOToLargePages("no such object"));
	SAME(MapDSOToLargePages(NULL));
	SAME(MapStaticCodeRangeToLargePages(NULL, NULL));
	SAME(MapStaticCodeRangeToLargePages((void *)fat_code, (void *)(fat_code + 1)));
	SAME(MapStaticCodeToLargePages());
	SAME(remap_text_and_data_to_huge_pages(logger));
	/* Nor may an error of the loader stay that the program would take for its own. */
	const char *error = dlerror();
	if (error)
		printf("dlerror: %s\n", error), bad = 1;
	if (fat_wrong(64))
		puts("wrong"), bad = 1;
	puts(bad ? "bad" : "ok");
	return bad;
}
