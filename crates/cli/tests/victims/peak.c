/* SPDX-License-Identifier: Apache-2.0 */
/* peak PROG ARGS: runs PROG and prints the most memory that it had, in kB. It ends as PROG does.
 *
 * The peak of a process counts what its parent had at the time of fork(2): the kernel keeps it over execve(2). This
 * program is small. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rusage usage;
	int status = 0;
	if (argc < 2)
		return 99;
	pid_t pid = fork();
	if (pid == 0) {
		execv(argv[1], argv + 1);
		_exit(98);
	}
	if (pid < 0 || wait4(pid, &status, 0, &usage) != pid)
		return 99;
	printf("%ld\n", usage.ru_maxrss);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}
