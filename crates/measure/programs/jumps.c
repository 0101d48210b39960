// SPDX-License-Identifier: Apache-2.0
// jumps CALLS EVERY [text]: calls every EVERYth function of code.S in random order, CALLS times; each
// call depends on the result of the one before. Prints the sum of the walk, the address of the code, and
// with `text` a checksum of its bytes. Then waits for the end of its standard input, so that its memory
// can be read first.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long step(unsigned long);

__attribute__((visibility("hidden"))) extern const char code[], code_end[];

static unsigned long sum_of_text(void)
{
    unsigned long sum = 14695981039346656037ul;
    for (const char *at = code; at < code_end; at += sizeof sum) {
        unsigned long word;
        memcpy(&word, at, sizeof word);
        sum = (sum ^ word) * 1099511628211ul;
    }
    return sum;
}

int main(int argc, char **argv)
{
    unsigned long calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    unsigned long every = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    if (every < 1 || every > COUNT)
        every = 1;
    unsigned long choice = COUNT / every;
    unsigned long x = 88172645463325252ul, text = 0;
    for (unsigned long i = 0; i < calls; i++) {
        x ^= x >> 29;
        // Scales the upper half of x to 0..choice without a division.
        unsigned long number = ((x >> 32) * choice >> 32) * every;
        x = ((step *)(code + number * STRIDE))(x);
    }
    if (argc > 3)
        text = sum_of_text();
    printf("walk %lx text %lx at %lx\n", x, text, (unsigned long)code);
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return 0;
}
