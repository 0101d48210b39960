// SPDX-License-Identifier: Apache-2.0
// What the readers in C share. A reader defines make() and read_at_random(); both run in the folder of the data files.
// "make FOLDER" makes the files. "read FOLDER" and "own FOLDER" read them, with the program's own switch in the second case,
// print a sum of what they read, and wait for the end of standard input: meanwhile their memory can be read.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_BYTES 100

static void make(void);
static uint64_t read_at_random(int own);

static void check(int is_right, const char *what)
{
	if (is_right)
		return;
	fprintf(stderr, "%s failed\n", what);
	exit(1);
}

// Returns a number below a limit: the same sequence in each process.
static uint64_t draw(uint64_t below)
{
	static uint64_t state = 31;
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 33) % below;
}

// Fills a value with words that depend on its key.
__attribute__((unused)) static void fill(char value[VALUE_BYTES], uint64_t key)
{
	for (size_t at = 0; at < VALUE_BYTES; at += 4) {
		uint32_t word = (uint32_t)((key + at + 1) * 0x9e3779b97f4a7c15u >> 32);
		memcpy(value + at, &word, 4);
	}
}

// Returns the first word of a value, for the sum.
__attribute__((unused)) static uint64_t word(const void *value)
{
	uint64_t word;
	memcpy(&word, value, sizeof word);
	return word;
}

int main(int count, char **words)
{
	check(count == 3 && chdir(words[2]) == 0, "chdir(2) to the folder");
	if (strcmp(words[1], "make") == 0) {
		make();
		return 0;
	}
	printf("%llu\n", (unsigned long long)read_at_random(strcmp(words[1], "own") == 0));
	fflush(stdout);
	while (getchar() != EOF)
		;
}
