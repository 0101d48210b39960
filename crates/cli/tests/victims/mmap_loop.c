// SPDX-License-Identifier: Apache-2.0
// Maps and unmaps 128 MB for a second of CPU time; prints the CPU time of one cycle in ns.
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

static double cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void) {
  double began = cpu(), now = began;
  long cycles = 0;
  for (; now - began < 1e9; now = cpu())
    for (int i = 0; i < 1000; i++, cycles++) {
      void *p = mmap(NULL, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED || munmap(p, 128 << 20)) return 1;
    }
  printf("%.1f\n", (now - began) / cycles);
}
