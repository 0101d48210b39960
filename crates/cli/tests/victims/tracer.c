/* SPDX-License-Identifier: Apache-2.0 */
/* Traces a process until the end of its stdin, as a debugger does that lets its program run. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char byte;
	if (argc < 2 || ptrace(PTRACE_SEIZE, atoi(argv[1]), NULL, NULL)) {
		perror("PTRACE_SEIZE");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
