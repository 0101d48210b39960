/* SPDX-License-Identifier: Apache-2.0
 *
 * Has a large .bss besides its big code: fills it, prints where it is, and waits for a line on stdin.
 * The .bss is written before it is read: Linux 6.1 and 6.12 give no huge page to memory that was read
 * first and so has the huge zero page. Exit status 42.
 */
#include "vm_big.h"

#define LARGE (96ul << 20)
static volatile unsigned char zeros[LARGE];

int main(void) {
  for (unsigned long i = 0; i < LARGE; i += 1024) zeros[i] = (unsigned char)(i >> 10);
  for (unsigned long i = 0; i < LARGE; i += 1024)
    if (zeros[i] != (unsigned char)(i >> 10)) return 1;
  printf("bss %lx %lx\n", (unsigned long)zeros, LARGE);
  if (look()) return 1;
  return getchar() == EOF ? 2 : 42;
}
