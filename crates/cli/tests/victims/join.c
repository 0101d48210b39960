// SPDX-License-Identifier: Apache-2.0
// Forks, and writes to its memory, as the lines on its stdin command:
//
//   fork       forks a child that keeps the memory as it is now, until "end"
//   huge page  writes a byte to each huge page, or to each page
//   end        the child checks that its memory is unchanged, and ends
//   exec       the child becomes another program, which runs until "kill"
//   remap      maps other memory at the same address, and touches one small page of each huge page
//   churn      maps memory at the same address again and again, huge, forks and splits it
//   idle       touches the memory for a time, and prints how long one round took at most
//   check      prints how many pages are not as they were written
//
// It answers each with one line. With "sparse", every second huge page of the memory is never huge.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MB
#define MB 64
#endif
#define HUGE (2ul << 20)
#define PAGE 4096ul
#define SIZE ((unsigned long)MB << 20)

static unsigned char memory[SIZE] __attribute__((aligned(HUGE)));
// What was written to each page last. Mapped apart from the memory, whose whole range is printed.
static unsigned char *last;

static void touch(unsigned long page, unsigned char value) {
    memory[page * PAGE + page % PAGE] = value;
    last[page] = value;
}

static unsigned long wrong(void) {
    unsigned long n = 0;
    for (unsigned long page = 0; page < SIZE / PAGE; page++)
        if (last[page]) n += memory[page * PAGE + page % PAGE] != last[page];
    return n;
}

static void write_each(unsigned long step) {
    for (unsigned long page = 0; page < SIZE / PAGE; page += step / PAGE)
        if (last[page]) touch(page, last[page] % 255 + 1);
}

static void fill(int sparse) {
    for (unsigned long page = 0; page < SIZE / PAGE; page++) {
        int small = sparse && page / (HUGE / PAGE) % 2;
        if (page % (HUGE / PAGE) == 0) prctl(PR_SET_THP_DISABLE, small, 0, 0, 0);
        if (!small || page % (HUGE / PAGE) < 3) touch(page, 1 + page % 200);
    }
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

static void renew(int advice) {
    munmap(memory, SIZE);
    void *at = mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != memory) exit(3);
    madvise(memory, SIZE, advice);
    memset(last, 0, SIZE / PAGE);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    char line[64];
    int pipes[2];
    pid_t child = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    last = mmap(NULL, SIZE / PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (last == MAP_FAILED) return 2;
    fill(argc > 1 && strcmp(argv[1], "sparse") == 0);
    printf("%lx %lx\n", (unsigned long)memory, SIZE);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "fork")) {
            if (pipe(pipes)) return 4;
            child = fork();
            if (!child) {
                close(pipes[1]);
                char c;
                if (read(pipes[0], &c, 1) == 0) _exit(wrong() ? 1 : 0);
                execlp("sleep", "sleep", "1000", NULL);
                _exit(1);
            }
            close(pipes[0]);
            printf("%d\n", child);
        } else if (!strcmp(line, "huge") || !strcmp(line, "page")) {
            write_each(line[0] == 'h' ? HUGE : PAGE);
            puts("written");
        } else if (!strcmp(line, "end")) {
            int status;
            close(pipes[1]);
            waitpid(child, &status, 0);
            puts(status ? "wrong" : "right");
        } else if (!strcmp(line, "exec")) {
            if (write(pipes[1], "x", 1) != 1) return 5;
            puts("told");
        } else if (!strcmp(line, "kill")) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            puts("killed");
        } else if (!strcmp(line, "remap")) {
            renew(MADV_NORMAL);
            for (unsigned long page = 0; page < SIZE / PAGE; page += HUGE / PAGE) touch(page, 7);
            puts("mapped");
        } else if (!strcmp(line, "churn")) {
            unsigned long bad = 0;
            for (double until = now() + 4000; now() < until;) {
                renew(MADV_HUGEPAGE);
                fill(0);
                for (double there = now() + 600; now() < there;) {
                    child = fork();
                    if (!child) _exit(0);
                    write_each(HUGE);
                    waitpid(child, NULL, 0);
                    bad += wrong();
                }
            }
            printf("%lu wrong\n", bad);
        } else if (!strcmp(line, "idle")) {
            double longest = 0, before = now();
            for (double until = before + 12000; before < until;) {
                for (unsigned long at = 0; at < SIZE; at += HUGE) memory[at]++, memory[at]--;
                double after = now();
                if (after - before > longest) longest = after - before;
                before = after;
            }
            printf("%.3f ms\n", longest);
        } else if (!strcmp(line, "check")) {
            printf("%lu wrong\n", wrong());
        }
    }
    return 0;
}
