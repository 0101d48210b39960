/* SPDX-License-Identifier: Apache-2.0 */
/* hugelift from inside: a program puts its own code and read-only data on huge pages.
 *
 *     struct hugelift_options options;
 *     struct hugelift_report *report;
 *     hugelift_options_init(&options, sizeof options);
 *     int code = hugelift_lift_self(&options, &report);
 *     if (code != HUGELIFT_OK)
 *         fprintf(stderr, "not lifted: %s\n", hugelift_strerror(code));
 *     hugelift_report_free(report);
 *
 * All addresses, bytes and protections stay, and other threads run on. No function prints, ends the process, throws,
 * leaves a file open or changes errno. If malloc(3) fails, the library ends the process, as Rust's library does.
 *
 * Made by cbindgen from the crate hugelift-library: change that instead. */


#ifndef HUGELIFT_H
#define HUGELIFT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * Done. What could not be lifted is in the report.
 */
#define HUGELIFT_OK 0

/**
 * An argument is not allowed: a null pointer, an unknown number, a malformed pattern, a member of the options that is
 * set and that this version of the library does not have.
 */
#define HUGELIFT_E_INVALID -1

/**
 * Another thread lifts or restores at this moment. Try again.
 */
#define HUGELIFT_E_BUSY -2

/**
 * /proc/self cannot be read, or shows no 64-bit ELF program.
 */
#define HUGELIFT_E_PROC -3

/**
 * Data was asked for, and the program has several threads or did not set HUGELIFT_ONE_THREAD.
 */
#define HUGELIFT_E_THREADS -4

/**
 * A failed step could not be undone. Memory that nothing uses may have stayed mapped.
 */
#define HUGELIFT_E_LOST -5

/**
 * A defect of the library. It did nothing further.
 */
#define HUGELIFT_E_INTERNAL -6

/**
 * Code.
 */
#define HUGELIFT_PART_TEXT 1

/**
 * Read-only data.
 */
#define HUGELIFT_PART_RODATA 2

/**
 * Initialised data, also what is read-only after relocation. Needs HUGELIFT_ONE_THREAD.
 */
#define HUGELIFT_PART_DATA 4

/**
 * Data that is zero at the start. It becomes huge where it is, also while threads write to it.
 */
#define HUGELIFT_PART_BSS 8

/**
 * What brk(2) manages. It becomes huge where it is, also while threads write to it.
 */
#define HUGELIFT_PART_HEAP 16

/**
 * Huge pages of the page cache where there are some, else the copy that all processes share, else transparent huge
 * pages.
 */
#define HUGELIFT_BACKING_AUTO 0

/**
 * The file's own page cache, if it is in huge pages already: nothing is copied.
 */
#define HUGELIFT_BACKING_PAGECACHE 1

/**
 * A copy in the store, which all processes share.
 */
#define HUGELIFT_BACKING_SHARED 2

/**
 * A copy on transparent huge pages.
 */
#define HUGELIFT_BACKING_THP 3

/**
 * A copy on pages of the reserved pool (vm.nr_hugepages).
 */
#define HUGELIFT_BACKING_HUGETLB 4

/**
 * Flag: the process has one thread, and nothing else writes to its data (no other process by shared memory, no
 * asynchronous I/O). The library checks the number of threads.
 */
#define HUGELIFT_ONE_THREAD 1

/**
 * Nothing is logged.
 */
#define HUGELIFT_LOG_NONE 0

/**
 * Why the call failed.
 */
#define HUGELIFT_LOG_ERROR 1

/**
 * Also what was not lifted although it might have been, with what helps.
 */
#define HUGELIFT_LOG_WARNING 2

/**
 * Also what is on huge pages now, in one line.
 */
#define HUGELIFT_LOG_INFO 3

/**
 * Also a line for each part of each object.
 */
#define HUGELIFT_LOG_DEBUG 4

/**
 * What came of a call: what smaps shows, not what was asked for.
 */
struct hugelift_report;

/**
 * Receives a line, without a line break, in UTF-8. It is called in the thread that called the library, before that
 * call returns. It must not call the library, and must not leave by longjmp(3) or by an exception. The text is valid
 * until it returns.
 */
typedef void (*hugelift_log_function)(void *context, int level, const char *message);

/**
 * What to lift, and onto what. hugelift_options_init() fills it in.
 */
struct hugelift_options {
    /**
     * Bytes of this structure, as the program was compiled with.
     */
    size_t size;
    /**
     * HUGELIFT_PART_*, added up. Text and read-only data, unless changed.
     */
    uint32_t parts;
    /**
     * One of HUGELIFT_BACKING_*, for text and read-only data.
     */
    uint32_t backing;
    /**
     * Size of the huge pages in bytes; 0 for the usual one of the backing.
     */
    uint64_t page_size;
    /**
     * Bytes that may go into copies where a control group limits the memory of the program. 0, unless changed: there
     * nothing is copied.
     */
    uint64_t spare;
    /**
     * HUGELIFT_ONE_THREAD or 0.
     */
    uint32_t flags;
    /**
     * The most detailed HUGELIFT_LOG_* that is logged. HUGELIFT_LOG_INFO, unless changed.
     */
    int log_level;
    /**
     * Receives what is logged; NULL for nothing.
     */
    hugelift_log_function log;
    /**
     * The first argument of `log`.
     */
    void *log_context;
    /**
     * Shell patterns, ended by NULL: only objects whose path or file name matches one are lifted. NULL for all.
     */
    const char *const *objects;
    /**
     * Shell patterns, ended by NULL: objects whose path or file name matches one are not lifted. NULL for none.
     */
    const char *const *excluded;
};

/**
 * A range of the process that was lifted. Symbols of a copy that has no file name are found by `path` and `offset`.
 */
struct hugelift_range {
    /**
     * The first address.
     */
    const void *start;
    /**
     * The first address behind it.
     */
    const void *end;
    /**
     * One of HUGELIFT_PART_*.
     */
    uint32_t part;
    /**
     * One of HUGELIFT_BACKING_*.
     */
    uint32_t backing;
    /**
     * The object that it belongs to. The text is never freed.
     */
    const char *path;
    /**
     * The offset in that file of what was mapped at `start`, for text and data.
     */
    uint64_t offset;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the library that runs, as in "0.1.0".
 *
 * Thread-safe, async-signal-safe. It never fails. The text is never freed.
 */
const char *hugelift_version(void);

/**
 * Returns the meaning of an error code in English, without a full stop; for an unknown code "unknown error".
 *
 * Thread-safe, async-signal-safe. It never fails. The text is never freed.
 */
const char *hugelift_strerror(int code);

/**
 * Lifts the calling process: gives its code and read-only data huge pages. All addresses, bytes and protections
 * stay. What is huge already stays as it is, so that after dlopen(3) the function lifts what is new.
 *
 * Before: `options` was initialised by hugelift_options_init(), or is NULL for the defaults. `report` is NULL, or
 * points to a pointer that is overwritten.
 * After: on success `*report` is a report, to be freed by hugelift_report_free(); on failure it is NULL, and the
 * process is as before (but see HUGELIFT_E_LOST).
 *
 * Thread-safe: other threads run on; one that executes code at the moment at which it is replaced waits for some
 * microseconds. Not async-signal-safe. Not allowed in a child of vfork(2), or in the log function. It works in a
 * child of fork(2). It allocates memory by malloc(3). A pthread_cancel(3) takes effect after it.
 *
 * Errors: HUGELIFT_E_INVALID, HUGELIFT_E_BUSY, HUGELIFT_E_PROC, HUGELIFT_E_THREADS, HUGELIFT_E_LOST,
 * HUGELIFT_E_INTERNAL. What cannot be lifted is no error: the log and the report say why.
 */
int hugelift_lift_self(const struct hugelift_options *options,
                       struct hugelift_report **report);

/**
 * Lifts what of the code and the read-only data lies between two addresses, in whole huge pages.
 *
 * Before: `start` is not above `end`; the rest is as for hugelift_lift_self(). Memory that belongs to no ELF file is
 * not lifted.
 * After, safety and errors: as for hugelift_lift_self().
 */
int hugelift_lift_range(const void *start,
                        const void *end,
                        const struct hugelift_options *options,
                        struct hugelift_report **report);

/**
 * Gives the calling process the pages of its files back where text and read-only data are copies. A copy that differs
 * from its file stays.
 *
 * Before, after, safety and errors: as for hugelift_lift_self(). Of `options` only the log is used.
 */
int hugelift_restore_self(const struct hugelift_options *options,
                          struct hugelift_report **report);

/**
 * Fills in the defaults.
 *
 * Before: `options` points to `size` writable bytes; `size` is `sizeof *options`. A program that was compiled with an
 * older header works: what it does not know has its default. So does one that was compiled with a newer header, as
 * long as what this version does not know stays as this function leaves it.
 * After: `options` may be changed member by member and passed to the other functions.
 *
 * Thread-safe, async-signal-safe. Errors: HUGELIFT_E_INVALID for a null pointer, or a size that no version had
 * or will have.
 */
int hugelift_options_init(struct hugelift_options *options,
                          size_t size);

/**
 * Finds the lifted range that holds an address. After dlclose(3) the ranges of the object are found until the next
 * lift or restore.
 *
 * Before: `range` is NULL, or points to `size` writable bytes; `size` is `sizeof *range`.
 * After: if 1 is returned, `*range` is filled in.
 *
 * Thread-safe, async-signal-safe: it takes no lock, allocates nothing and makes no system call, whatever other threads
 * lift or restore meanwhile. No handler, be it of a signal or of a fault in `*range`, may leave it by longjmp(3) or
 * end its thread: a later lift or restore would wait for ever. Returns 1 if there is such a range, 0 if there is none.
 * Errors: HUGELIFT_E_BUSY if more than 64 threads and signal handlers read at this moment.
 */
int hugelift_find(const void *address,
                  struct hugelift_range *range,
                  size_t size);

/**
 * Copies the lifted ranges, by address.
 *
 * Before: `ranges` points to `room` structures of `size` bytes; `size` is `sizeof *ranges`. It may be NULL if `room` is 0.
 * After: as many as fit are filled in.
 *
 * Thread-safe, async-signal-safe, as hugelift_find(). No handler, be it of a signal or of a fault in `ranges`,
 * may leave it by longjmp(3) or end its thread: a later lift or restore would wait for ever. Returns the number of
 * ranges that there are, which may exceed `room`. Errors: HUGELIFT_E_BUSY as for hugelift_find(), HUGELIFT_E_INVALID
 * for a null pointer.
 */
ptrdiff_t hugelift_ranges(struct hugelift_range *ranges,
                          size_t room,
                          size_t size);

/**
 * Returns the bytes of these parts (HUGELIFT_PART_*, added up) that huge pages map; 0 for a null pointer.
 *
 * Thread-safe, async-signal-safe.
 */
uint64_t hugelift_report_huge_bytes(const struct hugelift_report *report, uint32_t parts);

/**
 * Returns the bytes of these parts (HUGELIFT_PART_*, added up) that huge pages could map: whole huge pages inside a
 * part; 0 for a null pointer.
 *
 * Thread-safe, async-signal-safe.
 */
uint64_t hugelift_report_liftable_bytes(const struct hugelift_report *report,
                                        uint32_t parts);

/**
 * Returns the report in one line of English; "" for a null pointer. The text is valid until the report is freed.
 *
 * Thread-safe, async-signal-safe.
 */
const char *hugelift_report_summary(const struct hugelift_report *report);

/**
 * Returns all details as JSON, in the form of `hugelift inspect --json`; "" for a null pointer. The text is valid until
 * the report is freed.
 *
 * Thread-safe. Not async-signal-safe.
 */
const char *hugelift_report_json(const struct hugelift_report *report);

/**
 * Frees a report. A null pointer is allowed.
 *
 * Thread-safe. Not async-signal-safe.
 */
void hugelift_report_free(struct hugelift_report *report);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HUGELIFT_H */
