/* SPDX-License-Identifier: Apache-2.0 */
/* A program that knows nothing of the library, and runs all of its code. */
#include "fat.h"

#include <stdio.h>

int main(void)
{
	puts(fat_wrong(1) ? "bad" : "ok");
	return 0;
}
