// SPDX-License-Identifier: Apache-2.0
// Without a library: exits at once. Its text and its constants are a page each at most.
static const int status = 0;

void _start(void)
{
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(231), "D"(status));
#else
    register long number __asm__("x8") = 94;
    register long first __asm__("x0") = status;
    __asm__ volatile("svc 0" : : "r"(number), "r"(first));
#endif
    __builtin_unreachable();
}
