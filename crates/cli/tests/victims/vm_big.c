/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at its own code and read-only data. Exit status 42. Arguments:
 *   hold      waits for a line on stdin, then looks again
 *   die       ends by SIGSEGV
 *   signals   shows which signals are blocked, ignored and pending
 */
#include "vm_big.h"
#include <signal.h>
#include <string.h>

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (look()) return 1;
  if (!strcmp(what, "hold")) {
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
