/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of iodlr's library for large pages, provided by libhugelift. Statuses that its functions never
 * return are declared, so that programs that name them compile. */
#ifndef HUGELIFT_COMPAT_LARGE_PAGE_H
#define HUGELIFT_COMPAT_LARGE_PAGE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    map_ok = 0,
    map_failed_to_open_thp_file = 1,
    map_invalid_regex = 2,
    map_invalid_region_address = 3,
    map_malformed_thp_file = 4,
    map_null_regex = 5,
    map_region_not_found = 6,
    map_region_too_small = 7,
    map_see_errno = 8,
    map_see_errno_madvise_tmem_failed,
    map_see_errno_madvise_tmem_munmap_nmem_failed,
    map_see_errno_madvise_tmem_munmaps_failed,
    map_see_errno_madvise_tmem_munmap_tmem_failed,
    map_see_errno_mmap_tmem_failed,
    map_see_errno_mmap_tmem_munmap_nmem_failed,
    map_see_errno_mprotect_failed,
    map_see_errno_mprotect_munmap_nmem_failed,
    map_see_errno_mprotect_munmaps_failed,
    map_see_errno_mprotect_munmap_tmem_failed,
    map_see_errno_munmap_nmem_failed,
    map_unsupported_platform,
    map_open_exe_failed,
    map_see_errno_close_exe_failed,
    map_read_exe_header_failed,
    map_see_errno_seek_exe_sheaders_failed,
    map_read_exe_sheaders_failed,
    map_see_errno_seek_exe_string_table_failed,
    map_read_exe_string_table_failed,
    map_not_enough_explicit_hugepages_are_allocated,
    map_exe_path_read_failed,
    map_malformed_maps_file,
    map_maps_open_failed
} map_status;

#define MAP_STATUS_STR(status) MapStatusStr(status, true)
#define MAP_STATUS_STR_SHORT(status) MapStatusStr(status, false)

/* Lifts the text of the executable. */
map_status MapStaticCodeToLargePages(void);
/* Lifts the text of the objects whose path matches an extended regular expression (regex(7)). */
map_status MapDSOToLargePages(const char *lib_regex);
/* Lifts the code between two addresses, in whole huge pages. */
map_status MapStaticCodeRangeToLargePages(void *from, void *to);
/* Says whether the process may have transparent huge pages. */
map_status IsLargePagesEnabled(bool *result);
/* Returns the text of a status, long or short. */
const char *MapStatusStr(map_status status, bool fulltext);

#ifdef __cplusplus
}
#endif
#endif
