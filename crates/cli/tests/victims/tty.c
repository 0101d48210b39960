/* SPDX-License-Identifier: Apache-2.0 */
/* tty PROG ARGS: runs PROG as the foreground job of a new terminal, types ^C when it has
 * printed "ready" there, and prints what appeared on the terminal and how PROG ended.
 *
 * The terminal does not echo: the kernel echoes ^C after the signal, and PROG may have ended before, and the terminal with it. */
#define _GNU_SOURCE
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int master, status = 0;
	char seen[1 << 16] = "";
	size_t n = 0;
	if (argc < 2)
		return 99;
	pid_t pid = forkpty(&master, NULL, NULL, NULL);
	if (pid == 0) {
		struct termios quiet;
		if (tcgetattr(0, &quiet) != 0)
			_exit(97);
		quiet.c_lflag &= ~(tcflag_t)ECHO;
		if (tcsetattr(0, TCSANOW, &quiet) != 0)
			_exit(97);
		/* They are ignored if the tests run in the background. */
		signal(SIGINT, SIG_DFL);
		signal(SIGQUIT, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		execvp(argv[1], argv + 1);
		_exit(98);
	}
	int typed = 0;
	for (ssize_t got; n < sizeof seen - 1 && (got = read(master, seen + n, sizeof seen - 1 - n)) > 0;) {
		n += (size_t)got;
		seen[n] = 0;
		if (!typed && strstr(seen, "ready")) {
			typed = 1;
			if (write(master, "\003", 1) != 1)
				return 99;
		}
	}
	waitpid(pid, &status, 0);
	fwrite(seen, 1, n, stdout);
	printf("\n%s %d\n", WIFSIGNALED(status) ? "killed" : "exited",
	       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return 0;
}
