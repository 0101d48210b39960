// SPDX-License-Identifier: Apache-2.0
// Without a library: exits at once, with NAPS after 50 ms. Its text and its constants are a page each at most.
static const int status = 0;

#ifdef NAPS
// What nanosleep(2) takes: seconds and nanoseconds.
static const long nap[2] = {0, 50000000};

static void wait_a_little(void)
{
#if defined(__x86_64__)
    long result = 35;
    __asm__ volatile("syscall" : "+a"(result) : "D"(nap), "S"(0) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = 101;
    register long request __asm__("x0") = (long)nap;
    register long remains __asm__("x1") = 0;
    __asm__ volatile("svc 0" : "+r"(request) : "r"(number), "r"(remains) : "memory");
#endif
}
#else
static void wait_a_little(void)
{
}
#endif

void _start(void)
{
    wait_a_little();
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(231), "D"(status));
#else
    register long number __asm__("x8") = 94;
    register long first __asm__("x0") = status;
    __asm__ volatile("svc 0" : : "r"(number), "r"(first));
#endif
    __builtin_unreachable();
}
