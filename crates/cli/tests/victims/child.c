/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the name it was started as and whether its own code is on huge pages, as smaps shows it. In a run
 * whose children are lifted (HUGELIFT_RUN) it computes until its code is on huge pages: for 40 s of CPU time at most,
 * and for 100 s. These must pay also for earlier lifts of the same file, which take 0.3 s on a busy machine. With the
 * argument "brief" it does not. Ends with the status or by the signal of its arguments (`child code 7`,
 * `child signal 9`). */
#define _GNU_SOURCE
#include "fat.h"
#include "huge_code.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long huge = huge_code((void *)fat_code, (void *)fat_code_end);
	size_t wrong = 0;
	int brief = argc > 1 && !strcmp(argv[argc - 1], "brief");
	time_t until = time(NULL) + (getenv("HUGELIFT_RUN") && !brief ? 100 : 0);
	while (huge < 4096 && time(NULL) < until && clock() < 40L * CLOCKS_PER_SEC)
		wrong += fat_wrong(1), huge = huge_code((void *)fat_code, (void *)fat_code_end);
	if (getenv("HUGELIFT_RUN") && huge >= 4096)
		usleep(300000);
	int open = 0;
	for (int fd = 0; fd < 64; fd++)
		open += fcntl(fd, F_GETFD) != -1;
	wrong += fat_wrong(1);
	printf("%s %s, %d open, wrong %zu\n", argv[0], huge >= 4096 ? "huge" : "small", open, wrong);
	fflush(stdout);
	if (argc > 2 && !strcmp(argv[1], "code"))
		return atoi(argv[2]);
	if (argc > 2 && !strcmp(argv[1], "signal"))
		raise(atoi(argv[2]));
	return 0;
}
