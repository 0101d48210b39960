/* SPDX-License-Identifier: Apache-2.0 */
/* Prints after half a second that it has run, and ends. */
#include "fat.h"
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	usleep(500000);
	puts(fat_wrong(1000) ? "wrong" : "ran");
	return 0;
}
