/* SPDX-License-Identifier: Apache-2.0 */
/* jumps FIRST COUNT ROUNDS: has 16 MB of code, a function at the start of each page of 4 kB, and calls those of COUNT pages from
 * FIRST on, in order, ROUNDS times. Then it copies stdin to stdout, and ends with status 7; with a fourth argument by SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

__asm__(".pushsection .text\n"
        ".balign 4096\n"
        ".hidden pages\npages:\n"
        ".rept 4096\nret\n.balign 4096\n.endr\n"
        ".popsection\n");

extern const unsigned char pages[] __attribute__((visibility("hidden")));

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	size_t first = strtoul(argv[1], NULL, 10), count = strtoul(argv[2], NULL, 10);
	for (unsigned long round = strtoul(argv[3], NULL, 10); round; round--)
		for (size_t page = first; page < first + count; page++)
			((void (*)(void))(pages + 4096 * page))();
	for (int byte; (byte = getchar()) != EOF;)
		putchar(byte);
	fflush(stdout);
	if (argc > 4)
		raise(SIGTERM);
	return 7;
}
