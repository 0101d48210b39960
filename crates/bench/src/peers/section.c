// SPDX-License-Identifier: Apache-2.0
// Enters and exits by one C library, in one thread: SECTIONS times for each byte that it reads. Prints the
// nanoseconds per section.
#ifdef PEER_CK
#include <ck_epoch.h>
static ck_epoch_t epoch;
static ck_epoch_record_t record;
static void prepare(void) {
    ck_epoch_init(&epoch);
    ck_epoch_register(&epoch, &record, 0);
}
// Without a ck_epoch_section, like FreeBSD's epoch_enter(9).
static void enter_and_exit(void) {
    ck_epoch_begin(&record, 0);
    ck_epoch_end(&record, 0);
}
#else
#define _LGPL_SOURCE // its inline functions
#include <urcu/urcu-memb.h>
static void prepare(void) { urcu_memb_register_thread(); }
static void enter_and_exit(void) {
    urcu_memb_read_lock();
    urcu_memb_read_unlock();
}
#endif

#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double measured(void) {
    double began = now();
    for (int i = 0; i < SECTIONS; i++) enter_and_exit();
    return (now() - began) / SECTIONS;
}

int main(void) {
    prepare();
    while (getchar() != EOF) {
        measured(); // warms up
        printf("%f\n", measured());
        fflush(stdout);
    }
}
