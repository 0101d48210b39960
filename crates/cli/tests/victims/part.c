/* SPDX-License-Identifier: Apache-2.0 */
/* One of several shared objects with megabytes of code each: -DPART=n. */
#include "fat.h"
#define JOIN(a, b) a##b
#define NAME(n) JOIN(part_, n)
size_t NAME(PART)(void) { return fat_wrong(1); }
