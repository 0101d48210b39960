/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeps and computes in turn, and checks what system calls of others in it could spoil: its registers, its stack, errno, its
   data, the results of its own system calls. It ends when its input does, and says what was wrong. */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static uint64_t data[4096];

/* Returns a number that depends on many values, which are in registers and on the stack meanwhile. */
static uint64_t mix(uint64_t seed) {
    uint64_t a = seed, b = seed * 3, c = seed * 5, d = seed * 7, e = seed * 11, f = seed * 13, g = seed * 17;
    double x = 1.5 + (double)(seed & 15);
    volatile uint64_t canary = ~seed;
    for (int i = 0; i < 20000; i++) {
        a += b ^ (c >> 3); b += c ^ (d << 1); c += d ^ (e >> 2); d += e + f; e ^= g + a; f += a >> 1; g ^= f;
        x = x * 1.0000001 + (double)(i & 3);
    }
    return a ^ b ^ c ^ d ^ e ^ f ^ g ^ (uint64_t)x ^ canary;
}

int main(void) {
    const pid_t pid = getpid();
    /* The tracer is a sibling, which Yama forbids to trace it otherwise. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    const uint64_t right = mix(1);
    unsigned wrong = 0, rounds = 0;
    for (int i = 0; i < 4096; i++) data[i] = (uint64_t)i * 2654435761u;
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd in = {.fd = 0, .events = POLLIN};
        errno = 0;
        int ready = poll(&in, 1, 1);
        wrong += ready < 0 || errno != 0;
        wrong += mix(1) != right || getpid() != pid;
        for (int i = 0; i < 4096; i++) wrong += data[i] != (uint64_t)i * 2654435761u;
        rounds++;
        if (ready > 0) break;
    }
    printf("wrong %u\n", wrong);
    return rounds == 0;
}
