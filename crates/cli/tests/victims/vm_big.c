/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at its own code and read-only data. Exit status 42. Arguments:
 *   hold      waits for a line on stdin, then looks again
 *   collapse  has the kernel put its code on huge pages, prints the result, then holds
 *   die       ends by SIGSEGV
 *   signals   shows which signals are blocked, ignored and pending
 */
#include "vm_big.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* For a program that is no PIE: its big code is loaded at the stated address. */
static void collapse(void) {
  const Elf64_Phdr *ph = (const void *)getauxval(AT_PHDR);
  while (ph->p_type != PT_LOAD || ph->p_vaddr < BIG || !(ph->p_flags & PF_X)) ph++;
  int failed = madvise((void *)(uintptr_t)ph->p_vaddr, ph->p_memsz, MADV_COLLAPSE);
  printf("collapse: %s\n", failed ? strerror(errno) : "done");
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "collapse")) collapse();
  if (look()) return 1;
  if (!strcmp(what, "hold") || !strcmp(what, "collapse")) {
    if (getchar() == EOF) return 2;
    if (look()) return 1;
  }
  if (!strcmp(what, "signals")) show("/proc/self/status");
  if (!strcmp(what, "die")) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  return 42;
}
