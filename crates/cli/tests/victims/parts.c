/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the five shared objects made of part.c. */
#include <stdio.h>
size_t part_1(void), part_2(void), part_3(void), part_4(void), part_5(void);
int main(void)
{
	printf("wrong %zu %zu %zu %zu %zu\nready\n", part_1(), part_2(), part_3(), part_4(), part_5());
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
