/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the read-only segments of each of its objects in memory with the file, and
 * prints one line per segment. */
#define _GNU_SOURCE
#include "fat.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int check(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size, (void)data;
	const char *path = info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
	const char *base = strrchr(path, '/');
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return 0; /* the vdso */
	const unsigned char *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
			continue;
		const unsigned char *memory = (const unsigned char *)(info->dlpi_addr + p->p_vaddr);
		printf("%s %s %zu %s\n", base, p->p_flags & PF_X ? "text" : "rodata", (size_t)p->p_filesz,
		       memcmp(memory, file + p->p_offset, p->p_filesz) ? "DIFFERS" : "same");
	}
	munmap((void *)file, (size_t)st.st_size);
	return 0;
}

int main(void)
{
	dl_iterate_phdr(check, NULL);
	printf("wrong %zu\n", fat_wrong(1));
	return 0;
}
