/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory with tags (MTE): a constructor maps 4 MB of it and tags each 16 bytes; main finds the
 * same tags and bytes. All granules of 4 kB have one tag: QEMU 7.2 keeps no more (it loses the
 * offset in the page). Exit status 42; 77 where the machine has no tags.
 */
#include "vm_big.h"
#include <string.h>
#include <sys/mman.h>

#ifndef PROT_MTE
#define PROT_MTE 0x20
#endif
#define HWCAP2_MTE_BIT (1ul << 18)
#define BYTES (4ul << 20)
#define GRANULE 16

static uint64_t at;
static uint64_t tagged(uint64_t p) { return p | (p / 4096 * 7 & 15) << 56; }

__attribute__((constructor)) static void map(void) {
  if (!(getauxval(AT_HWCAP2) & HWCAP2_MTE_BIT)) return;
  void *p = mmap(0, BYTES, PROT_READ | PROT_WRITE | PROT_MTE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return;
  at = (uint64_t)p;
  memset(p, 0x33, BYTES);
  for (uint64_t g = at; g < at + BYTES; g += GRANULE)
    __asm__ volatile(".arch_extension memtag\n stg %0, [%0]" ::"r"(tagged(g)) : "memory");
}

int main(void) {
  if (!at) return 77;
  if (look()) return 1;
  for (uint64_t g = at; g < at + BYTES; g += GRANULE) {
    uint64_t p = g;
    __asm__ volatile(".arch_extension memtag\n ldg %0, [%0]" : "+r"(p)::"memory");
    int byte = *(unsigned char *)g;
    if (p != tagged(g) || byte != 0x33) {
      printf("tag and byte of %lx: %lx %x\n", g, p, byte);
      return 2;
    }
  }
  return 42;
}
