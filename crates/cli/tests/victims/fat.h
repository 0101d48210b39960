/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a program fat enough to be lifted: FAT_CODE and FAT_DATA name files that the
 * tests generate, a few megabytes of functions and of constants that can be checked.
 *
 * The code is an array of 64-byte functions: number i returns fat_value(i).
 * The data is an array of 32-bit words: number i is fat_value(i) too. */
#ifndef FAT_H
#define FAT_H
#include <stddef.h>
#include <stdint.h>

__asm__(".pushsection .text\n"
        ".balign 64\n"
        ".hidden fat_code\nfat_code:\n.incbin \"" FAT_CODE "\"\n"
        ".hidden fat_code_end\nfat_code_end:\n"
        ".type fat_code, %function\n.size fat_code, fat_code_end - fat_code\n"
        ".popsection\n"
        ".pushsection .rodata,\"a\"\n"
        ".balign 64\n"
        ".hidden fat_data\nfat_data:\n.incbin \"" FAT_DATA "\"\n"
        ".hidden fat_data_end\nfat_data_end:\n"
        ".popsection\n");

extern const unsigned char fat_code[] __attribute__((visibility("hidden")));
extern const unsigned char fat_code_end[] __attribute__((visibility("hidden")));
extern const uint32_t fat_data[] __attribute__((visibility("hidden")));
extern const uint32_t fat_data_end[] __attribute__((visibility("hidden")));

static inline uint32_t fat_value(uint32_t i) { return i * 2654435761u + 12345u; }

/* Runs every `step`-th function and reads every `step`-th word. Returns how many are wrong. */
static inline size_t fat_wrong(size_t step)
{
	size_t wrong = 0, functions = (size_t)(fat_code_end - fat_code) / 64;
	size_t words = (size_t)(fat_data_end - fat_data);
	for (size_t i = 0; i < functions; i += step) {
		uint32_t (*function)(void) = (uint32_t (*)(void))(uintptr_t)(fat_code + 64 * i);
		wrong += function() != fat_value((uint32_t)i);
	}
	for (size_t i = 0; i < words; i += step)
		wrong += *(const volatile uint32_t *)(fat_data + i) != fat_value((uint32_t)i);
	return wrong;
}
#endif
