/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

/* Returns how many kilobytes of the code between two addresses are on huge pages. */
static unsigned long huge_code(const void *code, const void *code_end)
{
	char line[512];
	unsigned long start = 0, end = 0, from, to, kb, huge = 0;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	if (!smaps) /* it has a root of its own */
		return 0;
	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			start = from, end = to;
			continue;
		}
		if (sscanf(line, "AnonHugePages: %lu", &kb) != 1 && sscanf(line, "FilePmdMapped: %lu", &kb) != 1 &&
		    sscanf(line, "ShmemPmdMapped: %lu", &kb) != 1)
			continue;
		if (start < (unsigned long)code_end && end > (unsigned long)code)
			huge += kb;
	}
	fclose(smaps);
	return huge;
}
