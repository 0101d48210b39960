/* SPDX-License-Identifier: Apache-2.0
 *
 * Has data, zero data, relocated data and a heap, each of several huge pages. Checks them as a
 * constructor left them, writes to them, gives heap memory back, and forks a child that writes as
 * well. Waits for the end of its stdin. Exit status 0. With NO_FORK there is no child.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA (8u << 20)
#define BSS (32u << 20)
#define RELRO (6u << 20)

int main(void);
__asm__(".pushsection .data.big,\"aw\",@progbits\n.balign 4096\ndata: .rept 1048576\n.quad 0x1122334455667788\n.endr\n.popsection\n"
        ".pushsection .data.rel.ro.big,\"aw\",@progbits\n.balign 4096\nrelocated: .rept 786432\n.quad main\n.endr\n.popsection\n");
extern volatile uint64_t data[DATA / 8];
extern volatile uintptr_t relocated[RELRO / 8];
static volatile uint64_t zero[BSS / 8];

#define CHECK(what) \
  do { \
    if (!(what)) return printf("line %d: " #what "\n", __LINE__), 1; \
  } while (0)

/* Before the program's entry point, and so before the lift of a dynamic one. */
__attribute__((constructor)) static void early(void) {
  for (size_t i = 0; i < DATA / 8; i += 8192) data[i] = i;
  for (size_t i = 0; i < BSS / 8 / 4; i += 8192) zero[i] = i + 1;
}

static int as_left(void) {
  for (size_t i = 0; i < DATA / 8; i++) CHECK(data[i] == (i % 8192 ? 0x1122334455667788 : i));
  for (size_t i = 0; i < BSS / 8; i++) CHECK(zero[i] == (i % 8192 || i >= BSS / 8 / 4 ? 0 : i + 1));
  for (size_t i = 0; i < RELRO / 8; i++) CHECK(relocated[i] == (uintptr_t)main);
  return 0;
}

static int fill(uint64_t seed) {
  for (size_t i = 0; i < DATA / 8; i++) data[i] = seed + i;
  for (size_t i = 0; i < BSS / 8; i++) zero[i] = seed ^ i;
  return 0;
}

static int filled(uint64_t seed) {
  for (size_t i = 0; i < DATA / 8; i++) CHECK(data[i] == seed + i);
  for (size_t i = 0; i < BSS / 8; i++) CHECK(zero[i] == (seed ^ i));
  return 0;
}

static sigjmp_buf out;
static void fault(int signal) { siglongjmp(out, signal); }

/* Checks that what is read-only after relocation cannot be written. */
static int protected(void) {
  signal(SIGSEGV, fault);
  for (size_t i = 8192; i < RELRO / 8; i += RELRO / 8 / 4) {
    int caught = sigsetjmp(out, 1);
    if (!caught) relocated[i] = 0;
    CHECK(caught == SIGSEGV && relocated[i] == (uintptr_t)main);
  }
  signal(SIGSEGV, SIG_DFL);
  return 0;
}

/* Checks that the heap grows and shrinks. */
static int grows(void) {
  char *start = sbrk(0);
  for (int round = 0; round < 3; round++) {
    CHECK(sbrk(9 << 20) == start);
    for (size_t i = 0; i < 9 << 20; i += 512) CHECK(start[i] == 0);
    memset(start, 0x5a, 9 << 20);
    CHECK(sbrk(-(5 << 20)) == start + (9 << 20));
    CHECK(start[(4 << 20) - 1] == 0x5a);
    CHECK(sbrk(-(4 << 20)) == start + (4 << 20) && sbrk(0) == start);
  }
  return 0;
}

int main(void) {
  if (as_left() || fill(7) || filled(7) || protected() || grows()) return 1;
#ifndef NO_FORK
  for (int round = 0; round < 3; round++) {
    pid_t child = fork();
    if (child == 0) _exit(filled(7 + round) || fill(99) || filled(99));
    int status;
    CHECK(!fill(8 + round) && !filled(8 + round));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
#endif
  puts("as it should be");
  fflush(stdout);
  while (getchar() != EOF) continue;
  return 0;
}
