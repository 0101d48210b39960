/* SPDX-License-Identifier: Apache-2.0 */
/* Maps shared memory of each kind, shares it with children that write to it all the time, and checks all of its bytes at
   the end. Prints a line "KIND START BYTES" for each mapping, and "ready". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define MB (1ul << 20)
#define BYTES (8 * MB)
#define PAGE 4096ul
#define CHILDREN 3
/* Each child has a word of its own at the end of each page. The stop sign is in the first. */
#define WORDS ((PAGE - 8 * (CHILDREN + 1)) / 8)

struct kind {
	const char *name;
	volatile uint64_t *at;
	int sparse;
};

static struct kind kinds[16];
static int count;

static void die(const char *what)
{
	perror(what);
	exit(3);
}

/* Returns a free address of whole huge pages, `skew` bytes behind their beginning. */
static char *place(unsigned long skew)
{
	char *p = mmap(0, BYTES + 4 * MB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	munmap(p, BYTES + 4 * MB);
	return (char *)(((uintptr_t)p + 2 * MB - 1) & ~(2 * MB - 1)) + skew;
}

static void *map(int fd, int flags, unsigned long skew)
{
	void *p = mmap(place(skew), BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | flags, fd, 0);
	if (p == MAP_FAILED)
		die("mmap of shared memory");
	return p;
}

static struct kind *add(const char *name, void *at)
{
	kinds[count] = (struct kind){ name, at, 0 };
	return &kinds[count++];
}

static int memory(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, BYTES))
		die("memfd_create");
	return fd;
}

static int is_there(const struct kind *kind, unsigned long page)
{
	return !kind->sparse || page % 512 < 100;
}

static uint64_t word(int kind, unsigned long page, unsigned long i)
{
	return (kind + 1) * 0x9e3779b97f4a7c15u ^ (page << 20) ^ i;
}

static volatile uint64_t *page_of(int kind, unsigned long page)
{
	return kinds[kind].at + page * PAGE / 8;
}

/* The mapping "again" shows the pages of the one before it. */
static int is_again(int kind)
{
	return !strcmp(kinds[kind].name, "again");
}

static void check(void)
{
	/* To read a page that is not there makes one. */
	for (int k = 0; k < count; k++)
		for (unsigned long page = 0; page < BYTES / PAGE; page++)
			for (unsigned long i = 0; i < WORDS && is_there(&kinds[k], page); i++) {
				if (page_of(k, page)[i] != word(k - is_again(k), page, i)) {
					printf("%s: word %lu of page %lu changed\n", kinds[k].name, i, page);
					exit(1);
				}
			}
}

static void child(int number)
{
	volatile uint64_t *stop = &page_of(0, 0)[WORDS + CHILDREN];
	pid_t parent = getppid();
	for (uint64_t round = 1;; round++) {
		for (int k = 0; k < count; k++)
			for (unsigned long page = 0; page < BYTES / PAGE; page++)
				if (is_there(&kinds[k], page))
					page_of(k, page)[WORDS + number] = round;
		if (*stop || getppid() != parent)
			_exit(0);
		usleep(2000);
	}
}

int main(void)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	add("anonymous", map(-1, MAP_ANONYMOUS, 0));
	int fd = memory("heap");
	add("memfd", map(fd, 0, 0));
	add("again", map(fd, 0, 0));
	fd = memory("sealed");
	add("sealed", map(fd, 0, 0));
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
	int id = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
	void *segment = id < 0 ? (void *)-1 : shmat(id, place(0), 0);
	if (segment == (void *)-1)
		die("shmat");
	shmctl(id, IPC_RMID, 0);
	add("segment", segment);
	char path[64];
	snprintf(path, sizeof path, "/dev/shm/hugelift-victim-%d", getpid());
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || unlink(path) || ftruncate(fd, BYTES))
		die(path);
	add("tmpfs", map(fd, 0, 0));
	void *locked = map(-1, MAP_ANONYMOUS, 0);
	add(mlock(locked, BYTES) ? "unlocked" : "locked", locked);
	add("skewed", map(-1, MAP_ANONYMOUS, PAGE));
	add("sparse", map(-1, MAP_ANONYMOUS, 0))->sparse = 1;

	for (int k = 0; k < count; k++)
		for (unsigned long page = 0; page < BYTES / PAGE && !is_again(k); page++)
			for (unsigned long i = 0; i < WORDS && is_there(&kinds[k], page); i++)
				page_of(k, page)[i] = word(k, page, i);
	check();
	for (int n = 0; n < CHILDREN; n++) {
		pid_t pid = fork();
		if (pid < 0)
			die("fork");
		if (!pid)
			child(n);
	}
	for (int k = 0; k < count; k++)
		printf("%s %lx %lu\n", kinds[k].name, (unsigned long)kinds[k].at, BYTES);
	/* Each child has all pages. */
	for (int n = 0; n < CHILDREN; n++)
		while (page_of(count - 1, 0)[WORDS + n] < 2)
			usleep(1000);
	printf("ready\n");
	while (getchar() != EOF)
		check();
	page_of(0, 0)[WORDS + CHILDREN] = 1;
	for (int n = 0; n < CHILDREN; n++)
		if (wait(0) < 0)
			die("wait");
	check();
	for (int n = 0; n < CHILDREN; n++)
		for (int k = 0; k < count; k++)
			for (unsigned long page = 0; page < BYTES / PAGE; page++)
				if (is_there(&kinds[k], page) && page_of(k, page)[WORDS + n] != page_of(0, 0)[WORDS + n]) {
					printf("%s: a write of child %d to page %lu is lost\n", kinds[k].name, n, page);
					return 2;
				}
	printf("as it should be\n");
	return 0;
}
