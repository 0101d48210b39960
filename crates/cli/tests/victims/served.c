/* SPDX-License-Identifier: Apache-2.0 */
/* A service of systemd: `served simple`, `served notify` and `served forking [PIDFILE]` are started as Type= says. It checks its
 * code and constants, says so where the type has a way, and runs until a signal ends it. */
#define _GNU_SOURCE
#include "fat.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Sends a message to the manager: sd_notify(3). */
static void notify(const char *message)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	if (!path || strlen(path) >= sizeof to.sun_path)
		exit(3);
	strcpy(to.sun_path, path);
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	if (*path == '@')
		to.sun_path[0] = 0;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, message, strlen(message), 0, (struct sockaddr *)&to, length) < 0)
		exit(4);
	close(fd);
}

/* Ends the parent once the child is there, whose pid is in the file. */
static void become_daemon(const char *pid_file)
{
	pid_t child = fork();
	if (child < 0)
		exit(5);
	if (child == 0)
		return;
	FILE *file = pid_file ? fopen(pid_file, "w") : NULL;
	if (pid_file && (!file || fprintf(file, "%d\n", child) < 0 || fclose(file)))
		exit(6);
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 7;
	if (fat_wrong(1))
		return 8;
	if (!strcmp(argv[1], "notify"))
		notify("READY=1");
	if (!strcmp(argv[1], "forking"))
		become_daemon(argc > 2 ? argv[2] : NULL);
	if (fat_wrong(1))
		return 9;
	for (;;)
		pause();
}
