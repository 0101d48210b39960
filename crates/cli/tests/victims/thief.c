/* SPDX-License-Identifier: Apache-2.0 */
/* A user who wants the code of a file that it may not read. `thief FAKE INODE OVER FOLDER NAME` makes a user namespace
 * and mounts a tmpfs at OVER. OVER/x/NAME there has the bytes of FAKE and the given inode number, and is mapped as a
 * loader would do it. Then another tmpfs is mounted at OVER, where OVER/x leads to FOLDER: the path of the mapping now
 * leads to FOLDER/NAME. It prints "ready", waits until stdin ends, and prints how many bytes of the code that is zero in
 * FAKE are not zero any more. With `-` for INODE nothing is mounted, and FAKE itself is mapped.
 *
 * With a sixth argument, a public program, OVER is not covered at first. Each byte of stdin is then one of the acts of
 * `act`, and "done" is the answer. An act that the kernel refuses does nothing. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(2);
	}
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	need(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

static const char *over, *folder, *name;

static const char *at(const char *last)
{
	static char paths[2][4096];
	static int turn;
	snprintf(paths[turn ^= 1], sizeof paths[0], "%s/x%s%s", over, *last ? "/" : "", last);
	return paths[turn];
}

/* What the owner of a process can do to what it has mapped. */
static void act(char what, char *code, unsigned long size, unsigned long offset, int fake, int open_program)
{
	const int prot = PROT_READ | PROT_EXEC, flags = MAP_PRIVATE | MAP_FIXED;
	char path[4096];
	switch (what) {
	case 'o': /* cover the folder by one where the name leads elsewhere */
		if (mount("tmpfs", over, "tmpfs", 0, "mode=0755") == 0 && symlink(folder, at("")) < 0)
			perror("symlink");
		break;
	case 'b': /* cover it by the private folder itself */
		mount(folder, at(""), NULL, MS_BIND, NULL);
		break;
	case 'u':
		umount2(at(""), MNT_DETACH);
		umount2(over, MNT_DETACH);
		break;
	case 'r':
		rename(at(name), at("moved"));
		break;
	case 'R':
		rename(at("moved"), at(name));
		break;
	case 'l':
		snprintf(path, sizeof path, "%s/%s", folder, name);
		if (rename(at(name), at("moved")) == 0 && symlink(path, at(name)) < 0)
			perror("symlink");
		break;
	case 'h':
		link(at("moved"), at(name));
		break;
	case 'c':
		fchmod(fake, 0);
		break;
	case 'C':
		fchmod(fake, 0755);
		break;
	case 't':
		ftruncate(fake, PAGE);
		break;
	case 'p': /* another program where the code was */
		mmap(code, size, prot, flags, open_program, offset);
		break;
	case 'f':
		mmap(code, size, prot, flags, fake, offset);
		break;
	case 'w':
		if (mprotect(code, PAGE, PROT_READ | PROT_WRITE) == 0) {
			code[64] ^= 1;
			mprotect(code, PAGE, prot);
		}
		break;
	case 'm':
		munmap(code, size);
		break;
	case 'n':
		unshare(CLONE_NEWNS);
		break;
	case 'j':
		chroot(over);
		break;
	}
}

int main(int argc, char **argv)
{
	char path[4096], text[64], byte;
	static char bytes[1 << 16];
	need(argc == 6 || argc == 7, "five or six arguments");
	over = argv[3], folder = argv[4], name = argv[5];
	int fake = open(argv[1], O_RDONLY), fd = fake;
	int open_program = argc == 7 ? open(argv[6], O_RDONLY) : -1;
	need(fake >= 0, argv[1]);
	if (strcmp(argv[2], "-")) {
		unsigned long wanted = strtoul(argv[2], NULL, 10);
		unsigned uid = getuid(), gid = getgid();
		need(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
		put("/proc/self/setgroups", "deny");
		snprintf(text, sizeof text, "0 %u 1", uid);
		put("/proc/self/uid_map", text);
		snprintf(text, sizeof text, "0 %u 1", gid);
		put("/proc/self/gid_map", text);
		need(mount("tmpfs", over, "tmpfs", 0, "mode=0755") == 0, "mount");
		snprintf(path, sizeof path, "%s/x", over);
		need(mkdir(path, 0755) == 0, path);
		snprintf(path, sizeof path, "%s/x/%s", over, name);
		for (;;) {
			struct stat stat;
			fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0755);
			need(fd >= 0 && fstat(fd, &stat) == 0, path);
			if (stat.st_ino == wanted)
				break;
			need(stat.st_ino < wanted, "no such inode number");
			need(unlink(path) == 0, path);
			close(fd);
		}
		for (ssize_t got; (got = read(fake, bytes, sizeof bytes)) > 0;)
			need(write(fd, bytes, got) == got, "write");
		if (argc == 6) {
			close(fd);
			fd = open(path, O_RDONLY);
			need(fd >= 0, path);
		}
	}
	Elf64_Ehdr head;
	Elf64_Phdr load[16];
	need(pread(fd, &head, sizeof head, 0) == sizeof head && head.e_phnum <= 16, "headers");
	need(pread(fd, load, head.e_phnum * sizeof *load, head.e_phoff) > 0, "headers");
	char *code = NULL;
	unsigned long size = 0, offset = 0;
	for (int i = 0; i < head.e_phnum; i++) {
		if (load[i].p_type != PT_LOAD)
			continue;
		unsigned long within = load[i].p_vaddr % PAGE;
		int prot = (load[i].p_flags & PF_R ? PROT_READ : 0) | (load[i].p_flags & PF_W ? PROT_WRITE : 0) |
			   (load[i].p_flags & PF_X ? PROT_EXEC : 0);
		char *here = mmap((void *)(load[i].p_vaddr - within), load[i].p_filesz + within, prot,
				MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, load[i].p_offset - within);
		need(here != MAP_FAILED, "mmap");
		if (load[i].p_flags & PF_X)
			code = here, size = load[i].p_filesz, offset = load[i].p_offset - within;
	}
	if (strcmp(argv[2], "-") && argc == 6)
		act('o', NULL, 0, 0, -1, -1);
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0) {
		act(byte, code, size, offset, fd, open_program);
		puts("done");
		fflush(stdout);
	}
	if (argc == 7)
		return 0;
	/* Nobody writes to these pages but the tracer: the memory has another content than the compiler can know. */
	volatile char *seen = code;
	unsigned long got = 0;
	for (unsigned long i = 2ul << 20; i < size - PAGE; i++)
		got += seen[i] != 0;
	printf("got %lu\n", got);
	return 0;
}
