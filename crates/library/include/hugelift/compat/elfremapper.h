/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of elfremapper's library, provided by libhugelift. */
#ifndef HUGELIFT_COMPAT_ELFREMAPPER_H
#define HUGELIFT_COMPAT_ELFREMAPPER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts the text and the data of the executable on huge pages: of the reserved pool, else transparent ones. Data is
 * lifted only while the process has one thread. Returns the number of huge pages that it has then; 0 on failure.
 * `logger` may be NULL; it gets a line of text for each problem. No page becomes both writable and executable. */
size_t remap_text_and_data_to_huge_pages(void (*logger)(const char *message));

#ifdef __cplusplus
}
#endif
#endif
