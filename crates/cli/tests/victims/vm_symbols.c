/* SPDX-License-Identifier: Apache-2.0
 *
 * Unwinds the stack from below a function in the big code, and names what it finds there, as
 * debuggers, profilers and exceptions do. Exit status 42.
 */
#define _GNU_SOURCE
#include "vm_big.h"
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <unwind.h>

void through_big(void (*callee)(void));

static const char *base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *unused) {
  (void)unused;
  /* A return address may be the next function's. */
  Dl_info info;
  char *ip = (char *)_Unwind_GetIP(context) - 1;
  if (!dladdr(ip, &info) || !info.dli_sname) {
    puts("frame ?");
  } else {
    printf("frame %s+%ld in %s\n", info.dli_sname, (long)(ip - (char *)info.dli_saddr), base(info.dli_fname));
  }
  return _URC_NO_REASON;
}

void tell(void) { _Unwind_Backtrace(frame, 0); }

static int object(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  printf("object %s of %d headers\n", base(info->dlpi_name), info->dlpi_phnum);
  return 0;
}

int main(void) {
  if (look()) return 1;
  through_big(tell);
  dl_iterate_phdr(object, 0);
  return 42;
}
