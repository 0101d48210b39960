/* SPDX-License-Identifier: Apache-2.0 */
/* The first process of each pod of the test's cluster: it waits, and reaps what it inherits. With arguments it prints
 * nothing either. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal)
{
	_exit(signal == SIGCHLD);
}

int main(void)
{
	signal(SIGTERM, end);
	signal(SIGINT, end);
	for (;;) {
		pause();
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
