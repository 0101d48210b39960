// SPDX-License-Identifier: Apache-2.0
/*
 * A fat program without a C library that makes only write(2) and exit_group(2) itself: under a filter
 * that denies any other call it runs as without. Aligns its stack pointer, and prints whether its
 * bytes are right.
 */
#include "fat.h"

#if defined __x86_64__
static long call(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}
enum { WRITE = 1, EXIT = 231 };
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call begin\n hlt");
#else
static long call(long number, long a, long b, long c)
{
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}
enum { WRITE = 64, EXIT = 94 };
__asm__(".globl _start\n_start: mov x29, #0\n bl begin\n");
#endif

void begin(void)
{
	unsigned long wrong = fat_wrong(64);
	if (wrong)
		call(WRITE, 1, (long)"wrong\n", 6);
	else
		call(WRITE, 1, (long)"right\n", 6);
	call(EXIT, wrong != 0, 0, 0);
}
