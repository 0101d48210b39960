// SPDX-License-Identifier: Apache-2.0
// A program as users of elfremapper write it: one call in main, a logger and the number of pages.
#include <elfremapper.h>
#include <stdio.h>

int main()
{
    size_t pages = remap_text_and_data_to_huge_pages([](const char *message) { printf("logged: %s\n", message); });
    printf("pages: %zu\n", pages);
    return pages == 0;
}
