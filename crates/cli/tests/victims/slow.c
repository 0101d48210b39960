// SPDX-License-Identifier: Apache-2.0
/*
 * A shared object whose constructor takes $SLOW milliseconds, and then prints the tracer of the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void slowly(void)
{
	char line[256];
	const char *slow = getenv("SLOW");
	FILE *status;
	usleep(slow ? (useconds_t)atoi(slow) * 1000 : 0);
	status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "TracerPid", 9))
			printf("%s", line);
	if (status)
		fclose(status);
}
