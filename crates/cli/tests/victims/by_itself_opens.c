/* SPDX-License-Identifier: Apache-2.0 */
/* A program that opens the library itself. It is not linked with it. Usage: by_itself_opens [LIBRARY] */
#include "fat.h"

#include <dlfcn.h>
#include <stdio.h>

/* Data that is large enough to be lifted. */
static uint32_t data[(6 << 20) / 4] = {1};

int main(int argc, char **argv)
{
	data[3 << 18] = 7;
	if (argc > 1 && !dlopen(argv[1], RTLD_NOW)) {
		puts(dlerror());
		return 2;
	}
	const char *error = dlerror();
	if (error)
		puts(error);
	puts(data[0] == 1 && data[3 << 18] == 7 && fat_wrong(64) == 0 && !error ? "ok" : "bad");
	return 0;
}
