/* SPDX-License-Identifier: Apache-2.0 */
/* Prints where it lies: all sources of the address of the executable must agree.
 * All addresses are relative to its own base, except in the lines `base` and `heap`.
 *
 * moved            all of the following
 * moved abort      calls abort() below three functions
 * moved hold       prints "ready" below three functions, and waits until stdin ends
 * moved count N    calls counted() N times (for a uprobe)
 * As C++ it also throws across functions and catches. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fat.h"
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifdef __cplusplus
#include <stdexcept>
#define C extern "C"
#else
#define C
#endif
#define NOINLINE __attribute__((noinline))

extern ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
extern char end[] __attribute__((visibility("hidden")));
static volatile char small = 'd';    /* .data */
static volatile char zeros[3 << 20]; /* .bss: begins in the page in which .data ends */
#ifdef BSS
static volatile char more[BSS];
#endif
static __thread int thread_local_value = 4711;
static const char *const relocated[] = { "one", "two", "three" };

static uintptr_t base(void) { return (uintptr_t)&__ehdr_start; }

static void relative(const char *name, uintptr_t at)
{
	printf("%s %#lx\n", name, (unsigned long)(at - base()));
}

static int first_object(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	relative("dl_iterate_phdr addr", info->dlpi_addr);
	relative("dl_iterate_phdr phdr", (uintptr_t)info->dlpi_phdr);
	printf("dl_iterate_phdr count %d\n", (int)info->dlpi_phnum);
	return 1;
}

/* Compares the kernel's copy of the auxiliary vector with the one on our stack. */
static void vector(void)
{
	ElfW(auxv_t) pairs[64];
	int fd = open("/proc/self/auxv", O_RDONLY);
	ssize_t got = read(fd, pairs, sizeof pairs);
	close(fd);
	static const unsigned long keys[] = { AT_PHDR, AT_PHENT, AT_PHNUM, AT_BASE, AT_ENTRY, AT_RANDOM, AT_EXECFN };
	for (size_t i = 0; i < (size_t)got / sizeof *pairs && pairs[i].a_type != AT_NULL; i++)
		for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
			if (pairs[i].a_type == keys[k] && pairs[i].a_un.a_val != getauxval(keys[k]))
				printf("auxv %lu differs\n", (unsigned long)pairs[i].a_type);
	relative("AT_PHDR", getauxval(AT_PHDR));
	relative("AT_ENTRY", getauxval(AT_ENTRY));
	printf("AT_PHNUM %lu\n", getauxval(AT_PHNUM));
}

/* Prints what /proc says, with the addresses in the image made relative. */
static void proc(void)
{
	static char line[4096];
	unsigned long start, stop, field[52] = { 0 };
	char prot[8], path[4096], self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	self[length > 0 ? length : 0] = 0;
	FILE *stat = fopen("/proc/self/stat", "r");
	char *rest = fgets(line, sizeof line, stat) ? strrchr(line, ')') : NULL;
	fclose(stat);
	if (!rest)
		return;
	int n = 3;
	for (char *word = strtok(rest + 2, " "); word && n < 52; word = strtok(NULL, " "))
		field[n++] = strtoul(word, NULL, 10);
	relative("start_code", field[26]);
	relative("end_code", field[27]);
	relative("start_data", field[45]);
	relative("end_data", field[46]);
	printf("stack %d\n", field[28] > (unsigned long)&line && field[48] > field[28]);
	FILE *maps = fopen("/proc/self/maps", "r");
	int files = 0;
	while (fgets(line, sizeof line, maps)) {
		unsigned long offset;
		path[0] = 0;
		sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095s", &start, &stop, prot, &offset, path);
		int own = !strcmp(path, self);
		if (own || (start >= base() && stop <= (((uintptr_t)end + 4095) & ~4095ul)))
			printf("maps %#lx-%#lx %s %lx %s\n", start - base(), stop - base(), prot, offset, own ? "file" : "zeros");
		files += own;
	}
	fclose(maps);
	printf("file mappings %d\n", files);
}

static void heap(void)
{
	char *at = (char *)sbrk(0), line[4096];
	int listed = 0;
	printf("heap %p\n", (void *)at);
	printf("sbrk up %d\n", sbrk(1 << 20) == at);
	memset(at, 1, 1 << 20);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, stop;
		sscanf(line, "%lx-%lx", &start, &stop);
		if (strstr(line, "[heap]"))
			listed |= start <= (unsigned long)at && (unsigned long)at < stop;
	}
	fclose(maps);
	printf("heap listed %d\n", listed);
	/* Starts from a new break: stdio may have allocated memory above the old one meanwhile. */
	char *now = (char *)sbrk(0);
	printf("sbrk down %d\n", sbrk(-(1 << 12)) == now);
	printf("sbrk back %d\n", sbrk(1 << 12) == now - (1 << 12));
	printf("heap behind the image %d\n", at >= end || !getauxval(AT_BASE));
}

C NOINLINE void counted(int n)
{
	__asm__ volatile("" : : "r"(n) : "memory");
}

C NOINLINE void trace(void)
{
	void *frames[16];
	int n = backtrace(frames, 16);
	char **names = backtrace_symbols(frames, n);
	for (int i = 0; i < n && i < 4; i++) {
		char *name = strchr(names[i], '('), *stop = name ? strpbrk(name, "+)") : NULL;
		printf("frame %.*s\n", stop ? (int)(stop - name - 1) : 1, name ? name + 1 : "?");
	}
	free(names);
}

C NOINLINE void third(const char *what)
{
	char byte;
	if (!strcmp(what, "abort")) {
		fflush(stdout);
		abort();
	}
	if (!strcmp(what, "hold")) {
		printf("wrong %zu\nready\n", fat_wrong(1));
		fflush(stdout);
		while (read(0, &byte, 1) > 0)
			;
	}
	trace();
#ifdef __cplusplus
	if (small == 'd') /* or the compiler leaves out what follows the call */
		throw std::runtime_error(what);
#endif
	__asm__ volatile("" : : : "memory");
}

C NOINLINE void second(const char *what)
{
	third(what);
	__asm__ volatile("" : : : "memory");
}

C NOINLINE void first(const char *what)
{
	second(what);
	__asm__ volatile("" : : : "memory");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "thrown";
	printf("base %#lx\n", (unsigned long)base());
	if (!strcmp(what, "count"))
		for (int i = 0; i < atoi(argv[2]); i++)
			counted(i);
	size_t set = 0;
	for (size_t i = 0; i < sizeof zeros; i++)
		set += zeros[i] != 0;
#ifdef BSS
	more[BSS / 2] = 1;
#endif
	printf("data %c, bss set %zu, thread local %d, %s %s %s\n", small, set, thread_local_value,
	       relocated[0], relocated[1], relocated[2]);
	dl_iterate_phdr(first_object, NULL);
	vector();
	proc();
	heap();
#ifdef __cplusplus
	try {
		first(what);
	} catch (const std::exception &e) {
		printf("caught %s\n", e.what());
	}
#else
	first(what);
#endif
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
