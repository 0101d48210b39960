/* SPDX-License-Identifier: Apache-2.0
 *
 * Four threads, started before main() by a constructor, call pieces of the code all the time.
 * Each must still do so, with right results, after the look. Exit status 42.
 */
#include "vm_big.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS 4
static atomic_ulong calls[THREADS];
static atomic_int wrong, ends;
static pthread_t thread[THREADS];

/* Its address is not known before the segment has grown: it is stated in the program header. */
static int (*piece(void))(int) {
  const Elf64_Phdr *ph = (const void *)getauxval(AT_PHDR);
  unsigned long first = 0, big = 0;
  while (ph[first].p_type != PT_LOAD) first++;
  while (ph[big].p_type != PT_LOAD || ph[big].p_vaddr < BIG || !(ph[big].p_flags & PF_X)) big++;
  uint64_t bias = (uint64_t)__ehdr_start - (ph[first].p_vaddr - ph[first].p_offset);
  return (int (*)(int))(uintptr_t)(bias + ph[big].p_vaddr);
}

static void *work(void *arg) {
  int (*f)(int) = piece();
  for (int i = 0; !ends; i++) {
    if (f(i) != i + 1) wrong = 1;
    (*(atomic_ulong *)arg)++;
    if (i % 1024 == 0) usleep(1000); /* leaves the emulated CPUs some time */
  }
  return arg;
}

__attribute__((constructor)) static void start(void) {
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&thread[i], 0, work, &calls[i])) wrong = 1;
}

int main(void) {
  if (look()) return 1;
  for (int i = 0; i < THREADS; i++) {
    unsigned long before = calls[i];
    while (calls[i] < before + 2000) usleep(1000);
  }
  ends = 1;
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], 0);
  return wrong ? 1 : 42;
}
