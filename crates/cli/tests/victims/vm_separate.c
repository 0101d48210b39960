/* SPDX-License-Identifier: Apache-2.0 */
/* vm_separate: prints what depends on addresses in the file: jump tables, pointers in constants and in data,
 * thread-local data, callbacks from the C library, constructors, functions that are bound at their first call, frames
 * of a backtrace. The output is the same wherever the parts of the file lie. */
#define _GNU_SOURCE
#include "fat.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unwind.h>

static _Thread_local int local = 7;
static int made;
static const char *const names[] = { "zero", "one", "two", "three", "four", "five", "six", "seven" };
static const char *(*volatile of)(int);

__attribute__((constructor)) static void make(void)
{
	made = 4;
}

__attribute__((noinline)) static int jump(int n)
{
	switch (n) {
	case 0: return local;
	case 1: return made * 3;
	case 2: return (int)strlen(names[3]);
	case 3: return 91;
	case 4: return abs(-n * local);
	case 5: return names[1][0];
	case 6: return 17 - made;
	default: return -1;
	}
}

static const char *name(int n)
{
	return names[n & 7];
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *frames)
{
	++*(int *)frames;
	return _Unwind_GetIP(context) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

__attribute__((noinline)) static int frames(int depth)
{
	int found = 0;
	if (depth)
		return frames(depth - 1) + (depth > 100);
	_Unwind_Backtrace(count, &found);
	return found;
}

int main(void)
{
	const char *sorted[8];
	char text[64];
	struct tm tm = { .tm_year = 100, .tm_mday = 1 };
	memcpy(sorted, names, sizeof sorted);
	qsort(sorted, 8, sizeof *sorted, by_name);
	of = name;
	for (int i = 0; i < 8; i++)
		printf("%d %s %s %.3f\n", jump(i), of(i), sorted[i], sqrt(i));
	strftime(text, sizeof text, "%A %d %B %Y", &tm);
	printf("%s %s %g %d\n", text, setlocale(LC_ALL, "C"), strtod("1.5e3", NULL), frames(5) > 5);
	printf("%zu wrong\n", fat_wrong(1));
	return 0;
}
