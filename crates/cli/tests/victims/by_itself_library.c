/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object that is large enough to be lifted. */
#include "fat.h"

size_t library_wrong(size_t step) { return fat_wrong(step); }
