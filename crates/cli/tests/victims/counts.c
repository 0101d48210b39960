/* SPDX-License-Identifier: Apache-2.0 */
/* counts MICROSECONDS: counts the SIGUSR1s that come from outside: within this time, or until 20 ms after the first. It must
 * be started with SIGUSR1 blocked, so that none arrives before the handler is set. */
#define _GNU_SOURCE
#include "fat.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int usr1;
static void on_usr1(int n) { (void)n; atomic_fetch_add(&usr1, 1); }

int main(int argc, char **argv)
{
	struct sigaction one = { .sa_handler = on_usr1, .sa_flags = SA_RESTART };
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaction(SIGUSR1, &one, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	int left = atoi(argc > 1 ? argv[1] : "0");
	for (int seen = 0; left > 0; left -= 1000) {
		usleep(1000);
		if (!seen && atomic_load(&usr1)) {
			seen = 1;
			left = left < 20000 ? left : 20000;
		}
	}
	printf("usr1 %d, wrong %zu\n", atomic_load(&usr1), fat_wrong(16));
	return 0;
}
