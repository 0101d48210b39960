/* SPDX-License-Identifier: Apache-2.0
 *
 * Without libc and without a byte of initialised data: its writable segment takes nothing from the
 * file (p_filesz 0). Its zeros fill several huge pages; they are checked, written and checked again. Exit status 0.
 */
#define WORDS (1ul << 20)

static volatile unsigned long zero[WORDS];

#ifdef __x86_64__
static void leave(long status) { __asm__ volatile("syscall" : : "a"(231), "D"(status) : "rcx", "r11", "memory"); }
#else
static void leave(long status)
{
	register long x0 __asm__("x0") = status, x8 __asm__("x8") = 94;
	__asm__ volatile("svc 0" : : "r"(x0), "r"(x8) : "memory");
}
#endif

void _start(void)
{
	for (unsigned long i = 0; i < WORDS; i++)
		if (zero[i])
			leave(1);
	for (unsigned long i = 0; i < WORDS; i++)
		zero[i] = i;
	for (unsigned long i = 0; i < WORDS; i++)
		if (zero[i] != i)
			leave(2);
	leave(0);
	for (;;)
		;
}
