/* SPDX-License-Identifier: Apache-2.0 */
/* A program that has no descriptor left for /proc/self/maps and smaps as soon as something of it was replaced. What the
 * library then says must be what was done. */
#define _GNU_SOURCE
#include <hugelift.h>

#include "fat.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))

static void fail(const char *what, int line)
{
	printf("line %d: not so: %s\n", line, what);
	fflush(stdout);
	_exit(1);
}

static int armed, changed, refused, warnings;

/* Returns whether a file is not to be opened. */
static int refuses(const char *path)
{
	size_t length = strlen(path);
	if (!armed || !changed || length <= 4 || strcmp(path + length - 4, "maps"))
		return 0;
	refused++;
	errno = EMFILE;
	return 1;
}

/* The library makes its calls of memory, and opens some files, by this function of the C library. */
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	va_list list;
	va_start(list, number);
	long a[6];
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_openat && refuses((const char *)a[1]))
		return -1;
	long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_mremap && a[3] & MREMAP_FIXED)
		changed = 1;
	return result;
}

int open64(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	if (refuses(path))
		return -1;
	return openat(AT_FDCWD, path, flags, mode);
}

static void log_line(void *context, int level, const char *message)
{
	(void)context;
	if (level == HUGELIFT_LOG_WARNING && strstr(message, "Too many open files"))
		warnings++;
}

int main(void)
{
	struct hugelift_options options;
	struct hugelift_report *report;
	const unsigned char *middle = (const unsigned char *)(((uintptr_t)fat_code + (2 << 20)) & -(2UL << 20));
	hugelift_options_init(&options, sizeof options);
	options.backing = HUGELIFT_BACKING_THP;
	options.log = log_line;
	armed = 1;
	CHECK(hugelift_lift_range(middle, middle + (2 << 20), &options, &report) == HUGELIFT_OK);
	CHECK(changed && refused && report && warnings == 1);
	CHECK(hugelift_report_huge_bytes(report, HUGELIFT_PART_TEXT) == 2 << 20);
	CHECK(strstr(hugelift_report_summary(report), "text 2 MB of"));
	CHECK(hugelift_find(middle, NULL, 0) == 1);
	hugelift_report_free(report);

	changed = refused = warnings = 0;
	CHECK(hugelift_restore_self(&options, &report) == HUGELIFT_OK);
	CHECK(changed && refused && report && warnings == 1);
	CHECK(strstr(hugelift_report_summary(report), "2 MB of 2 MB"));
	CHECK(hugelift_find(middle, NULL, 0) == 0);
	hugelift_report_free(report);
	CHECK(fat_wrong(64) == 0);
	puts("ok");
	return 0;
}
