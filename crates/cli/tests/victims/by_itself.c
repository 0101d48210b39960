/* SPDX-License-Identifier: Apache-2.0 */
/* A program that lifts itself. Usage: by_itself WHAT [LIBRARY]
 *
 * It prints "ok" and exits with 0, or says what is wrong. */
#define _GNU_SOURCE
#include <hugelift.h>

#include "fat.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))

static void fail(const char *what, int line)
{
	printf("line %d: not so: %s\n", line, what);
	fflush(stdout);
	_exit(1);
}

/* Data that is large enough to be lifted, and changes. */
static uint32_t data[(6 << 20) / 4] = {1};
static uint32_t bss[(6 << 20) / 4];

static _Atomic int stop;
static _Atomic long writable_code;

/* Counts mappings that are writable and executable, all the time. */
static void *watch(void *none)
{
	char line[512], rights[8];
	while (!stop) {
		FILE *maps = fopen("/proc/self/maps", "re");
		while (fgets(line, sizeof line, maps))
			if (sscanf(line, "%*s %7s", rights) == 1 && rights[1] == 'w' && rights[2] == 'x')
				writable_code++;
		fclose(maps);
	}
	return none;
}

static int descriptors(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void log_line(void *context, int level, const char *message)
{
	if (context)
		printf("log %d: %s\n", level, message);
}

static struct hugelift_options thp(void)
{
	struct hugelift_options options;
	CHECK(hugelift_options_init(&options, sizeof options) == HUGELIFT_OK);
	options.backing = HUGELIFT_BACKING_THP;
	options.log = log_line;
	options.log_context = getenv("SHOW_LOG");
	return options;
}

/* Returns how many kilobytes of the generated code are copies on huge pages. What the page cache holds of the file in
 * huge pages, the kernel maps so by itself. */
static unsigned long huge(void)
{
	char line[512];
	unsigned long start = 0, end = 0, from, to, kb, huge = 0;
	FILE *smaps = fopen("/proc/self/smaps", "re");
	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			start = from, end = to;
		else if (sscanf(line, "AnonHugePages: %lu", &kb) == 1 && start < (unsigned long)fat_code_end &&
			 end > (unsigned long)fat_code)
			huge += kb;
	}
	fclose(smaps);
	return huge;
}

/* Lifts, restores and lifts again, beside a thread that looks for writable code. */
static void lift_and_restore(void)
{
	struct hugelift_options options = thp();
	struct hugelift_report *report;
	pthread_t watcher;
	const uint64_t least = 4 << 20;
	int before = descriptors();
	CHECK(huge() == 0 && fat_wrong(1) == 0);
	pthread_create(&watcher, NULL, watch, NULL);
	for (int round = 0; round < 2; round++) {
		errno = 4711;
		CHECK(hugelift_lift_self(&options, &report) == HUGELIFT_OK);
		CHECK(errno == 4711);
		CHECK(hugelift_report_huge_bytes(report, HUGELIFT_PART_TEXT) >= least);
		CHECK(hugelift_report_huge_bytes(report, HUGELIFT_PART_RODATA) >= least);
		CHECK(hugelift_report_liftable_bytes(report, HUGELIFT_PART_TEXT) >= least);
		CHECK(strstr(hugelift_report_summary(report), "on huge pages"));
		CHECK(strstr(hugelift_report_json(report), "\"huge_bytes\""));
		hugelift_report_free(report);
		CHECK(huge() * 1024 >= least && fat_wrong(1) == 0);

		struct hugelift_range range, all[64];
		CHECK(hugelift_find(fat_code + (3 << 20), &range, sizeof range) == 1);
		CHECK(range.part == HUGELIFT_PART_TEXT && range.backing == HUGELIFT_BACKING_THP);
		CHECK((const unsigned char *)range.start <= fat_code + (3 << 20));
		CHECK(range.offset % 4096 == 0 && range.path[0] == '/');
		CHECK(hugelift_find(&range, NULL, 0) == 0);
		CHECK(hugelift_ranges(all, 64, sizeof all[0]) >= 2);

		/* A second call finds nothing to do. */
		CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_OK);
		CHECK(hugelift_ranges(all, 64, sizeof all[0]) >= 2);

		errno = 4712;
		CHECK(hugelift_restore_self(NULL, &report) == HUGELIFT_OK);
		CHECK(errno == 4712);
		hugelift_report_free(report);
		CHECK(huge() == 0 && fat_wrong(1) == 0);
		CHECK(hugelift_find(fat_code + (3 << 20), &range, sizeof range) == 0);
	}
	stop = 1;
	pthread_join(watcher, NULL);
	CHECK(writable_code == 0);
	CHECK(descriptors() == before);
}

/* Data is lifted only while there is one thread, and only if the program says so. */
static void data_and_bss(void)
{
	struct hugelift_options options = thp();
	struct hugelift_report *report;
	options.parts = HUGELIFT_PART_DATA | HUGELIFT_PART_BSS;
	for (size_t i = 0; i < sizeof data / 4; i++)
		data[i] = fat_value(i), bss[i] = fat_value(i + 1);
	CHECK(hugelift_lift_self(&options, &report) == HUGELIFT_E_THREADS && !report);
	options.flags = HUGELIFT_ONE_THREAD;
	pthread_t watcher;
	pthread_create(&watcher, NULL, watch, NULL);
	CHECK(hugelift_lift_self(&options, &report) == HUGELIFT_E_THREADS && !report);
	stop = 1;
	pthread_join(watcher, NULL);
	CHECK(hugelift_lift_self(&options, &report) == HUGELIFT_OK);
	CHECK(hugelift_report_huge_bytes(report, HUGELIFT_PART_DATA) >= 4 << 20);
	CHECK(hugelift_report_huge_bytes(report, HUGELIFT_PART_BSS) >= 4 << 20);
	hugelift_report_free(report);
	for (size_t i = 0; i < sizeof data / 4; i++)
		CHECK(data[i] == fat_value(i) && bss[i] == fat_value(i + 1));
	CHECK(fat_wrong(64) == 0);
}

/* Only whole huge pages between the addresses are lifted. */
static void range(void)
{
	struct hugelift_options options = thp();
	struct hugelift_report *report;
	const unsigned char *middle = (const unsigned char *)(((uintptr_t)fat_code + (2 << 20)) & -(2UL << 20));
	CHECK(hugelift_lift_range(middle - 4096, middle + (2 << 20) + 4096, &options, &report) == HUGELIFT_OK);
	hugelift_report_free(report);
	CHECK(huge() == 2048 && fat_wrong(1) == 0);
	CHECK(hugelift_lift_range(middle, middle - 1, &options, &report) == HUGELIFT_E_INVALID && !report);
}

static void arguments(void)
{
	struct hugelift_options options = thp();
	struct hugelift_report *report = (void *)1;
	options.parts = 1 << 30;
	CHECK(hugelift_lift_self(&options, &report) == HUGELIFT_E_INVALID && !report);
	options = thp(), options.backing = 77;
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_E_INVALID);
	options = thp(), options.page_size = 3;
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_E_INVALID);
	options = thp(), options.size = 1 << 20;
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_E_INVALID);
	const char *malformed[] = {"[", NULL};
	options = thp(), options.objects = malformed;
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_E_INVALID);
	CHECK(hugelift_options_init(NULL, sizeof options) == HUGELIFT_E_INVALID);
	CHECK(hugelift_options_init(&options, 0) == HUGELIFT_E_INVALID);
	for (int code = -6; code <= 0; code++)
		CHECK(strcmp(hugelift_strerror(code), "unknown error") != 0);
	CHECK(strcmp(hugelift_strerror(-7), "unknown error") == 0);
	CHECK(strchr(hugelift_version(), '.'));
	/* No version has had these sizes, and none will. */
	static const size_t never[] = {1, 8, 16, sizeof options - 8, sizeof options + 1, sizeof options + 4, 4104, 1 << 20, -1};
	_Alignas(8) unsigned char large[512];
	for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
		CHECK(hugelift_options_init((void *)large, never[i]) == HUGELIFT_E_INVALID);
		options = thp(), options.size = never[i];
		CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_E_INVALID);
		CHECK(hugelift_restore_self(&options, NULL) == HUGELIFT_E_INVALID);
	}
	/* A program that was compiled with a later, larger structure may not ask for what is not known here. */
	memset(large, 0xff, sizeof large);
	CHECK(hugelift_options_init((void *)large, sizeof large) == HUGELIFT_OK);
	CHECK(((struct hugelift_options *)large)->size == sizeof large);
	CHECK(hugelift_lift_self((void *)large, NULL) == HUGELIFT_OK);
	for (size_t at = sizeof options; at < sizeof large; at++) {
		large[at] = 1;
		CHECK(hugelift_lift_self((void *)large, &report) == HUGELIFT_E_INVALID && !report);
		large[at] = 0;
	}
	CHECK(hugelift_options_init((void *)large, sizeof options + 8) == HUGELIFT_OK);
	const char *objects[] = {"no such object", NULL};
	options = thp(), options.objects = objects;
	CHECK(hugelift_restore_self(NULL, NULL) == HUGELIFT_OK);
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_OK && huge() == 0);
	CHECK(hugelift_report_huge_bytes(NULL, 1) == 0 && !*hugelift_report_json(NULL));
	hugelift_report_free(NULL);
}

/* A child lifts itself, also one that was forked while its parent had lifted. */
static void child(void)
{
	struct hugelift_options options = thp();
	for (int lifted = 0; lifted < 2; lifted++) {
		if (lifted)
			CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_OK);
		pid_t pid = fork();
		if (pid == 0) {
			if (lifted) {
				CHECK(huge() >= 4096 && hugelift_find(fat_code + (3 << 20), NULL, 0) == 1);
				CHECK(hugelift_restore_self(NULL, NULL) == HUGELIFT_OK && huge() == 0);
			}
			CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_OK);
			CHECK(huge() >= 4096 && fat_wrong(1) == 0);
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	CHECK(huge() >= 4096 && fat_wrong(1) == 0);
}

/* What dlopen(3) maps later is lifted by another call. */
static void opened(const char *library)
{
	struct hugelift_options options = thp();
	struct hugelift_report *first, *second;
	CHECK(hugelift_lift_self(&options, &first) == HUGELIFT_OK);
	ssize_t before = hugelift_ranges(NULL, 0, sizeof(struct hugelift_range));
	void *object = dlopen(library, RTLD_NOW);
	CHECK(object);
	size_t (*wrong)(size_t) = (size_t(*)(size_t))dlsym(object, "library_wrong");
	CHECK(wrong && wrong(1) == 0);
	CHECK(hugelift_lift_self(&options, &second) == HUGELIFT_OK);
	for (uint32_t part = HUGELIFT_PART_TEXT; part <= HUGELIFT_PART_RODATA; part++)
		CHECK(hugelift_report_huge_bytes(second, part) >= hugelift_report_huge_bytes(first, part) + (4 << 20));
	CHECK(hugelift_ranges(NULL, 0, sizeof(struct hugelift_range)) >= before + 2);
	CHECK(wrong(1) == 0);
	CHECK(dlclose(object) == 0);
	CHECK(hugelift_lift_self(&options, NULL) == HUGELIFT_OK);
	CHECK(hugelift_ranges(NULL, 0, sizeof(struct hugelift_range)) == before);
	hugelift_report_free(first);
	hugelift_report_free(second);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "restore"))
		lift_and_restore();
	else if (!strcmp(what, "data"))
		data_and_bss();
	else if (!strcmp(what, "range"))
		range();
	else if (!strcmp(what, "arguments"))
		arguments();
	else if (!strcmp(what, "child"))
		child();
	else if (!strcmp(what, "opened"))
		opened(argv[2]);
	else
		fail("a known word", __LINE__);
	puts("ok");
	return 0;
}
