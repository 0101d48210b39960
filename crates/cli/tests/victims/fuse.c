/* SPDX-License-Identifier: Apache-2.0 */
/* A file system in user space that stops to answer. `fuse FOLDER FILE` (as root) mounts one at FOLDER, which has one file
 * with the bytes of FILE, `program`, and goes on as the user nobody. Nothing that it says may be kept by the kernel, so
 * each stat(2) and each look-up asks it again. It prints "ready". When stdin ends it prints "stopped" and answers nothing
 * any more, until it is killed: then the kernel ends the waiting of others. With `alone` behind FILE the kernel lets nobody
 * else in, not even root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOBODY = 65534, FOLDER = 1, PROGRAM = 2 };

static char request[(1 << 17) + 4096], bytes[1 << 17];
static int device, file;
static struct stat of_file;

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

static void answer(uint64_t unique, int error, void *data, size_t size)
{
	struct fuse_out_header head = { .len = sizeof head + (error ? 0 : size), .error = -error, .unique = unique };
	struct iovec all[2] = { { &head, sizeof head }, { data, error ? 0 : size } };
	/* The one who asked may have gone. */
	if (writev(device, all, 2) < 0 && errno != ENOENT)
		perror("writev");
}

static struct fuse_attr attributes(uint64_t node)
{
	int is_folder = node == FOLDER;
	struct fuse_attr attr = { .ino = node, .uid = NOBODY, .gid = NOBODY, .blksize = 4096 };
	attr.mode = is_folder ? S_IFDIR | 0755 : S_IFREG | 0755;
	attr.nlink = is_folder ? 2 : 1;
	attr.size = is_folder ? 0 : of_file.st_size;
	attr.blocks = (attr.size + 511) / 512;
	return attr;
}

static void serve(void)
{
	ssize_t got = read(device, request, sizeof request);
	if (got < (ssize_t)sizeof(struct fuse_in_header))
		return;
	struct fuse_in_header *head = (void *)request;
	void *body = request + sizeof *head;
	switch (head->opcode) {
	case FUSE_INIT: {
		struct fuse_init_in *in = body;
		struct fuse_init_out out = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION };
		out.max_readahead = in->max_readahead;
		out.max_write = 4096;
		return answer(head->unique, 0, &out, sizeof out);
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = { .nodeid = PROGRAM, .attr = attributes(PROGRAM) };
		return answer(head->unique, strcmp(body, "program") ? ENOENT : 0, &out, sizeof out);
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = { .attr = attributes(head->nodeid) };
		return answer(head->unique, 0, &out, sizeof out);
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		struct fuse_open_out out = { 0 };
		return answer(head->unique, 0, &out, sizeof out);
	}
	case FUSE_READ: {
		struct fuse_read_in *in = body;
		ssize_t size = pread(file, bytes, in->size < sizeof bytes ? in->size : sizeof bytes, in->offset);
		return answer(head->unique, size < 0 ? EIO : 0, bytes, size < 0 ? 0 : size);
	}
	case FUSE_STATFS: {
		struct fuse_statfs_out out = { .st = { .bsize = 4096, .namelen = 255, .frsize = 4096 } };
		return answer(head->unique, 0, &out, sizeof out);
	}
	case FUSE_READDIR:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		return answer(head->unique, 0, NULL, 0);
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(head->unique, ENOSYS, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	char options[128], byte;
	need(argc == 3 || (argc == 4 && !strcmp(argv[3], "alone")), "the arguments");
	file = open(argv[2], O_RDONLY | O_CLOEXEC);
	need(file >= 0 && fstat(file, &of_file) == 0, argv[2]);
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	need(device >= 0, "/dev/fuse");
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d%s", device, NOBODY, NOBODY,
	         argc == 4 ? "" : ",allow_other");
	need(mount("stops", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) == 0, "mount");
	need(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "setuid");
	puts("ready");
	fflush(stdout);
	struct pollfd both[2] = { { .fd = device, .events = POLLIN }, { .fd = 0, .events = POLLIN } };
	while (poll(both, 2, -1) > 0) {
		if (both[1].revents && read(0, &byte, 1) <= 0)
			break;
		if (both[0].revents & POLLIN)
			serve();
		else if (both[0].revents)
			return 0; /* unmounted */
	}
	puts("stopped");
	fflush(stdout);
	for (;;)
		pause();
}
