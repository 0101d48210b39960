/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a program fat enough to be lifted: FAT_CODE and FAT_DATA name files that the
 * tests generate, a few megabytes of functions and of constants that can be checked. Where there are no such
 * files, the assembler makes FAT_FUNCTIONS functions, and as many bytes of constants.
 *
 * The code is an array of 64-byte functions: number i returns fat_value(i).
 * The data is an array of 32-bit words: number i is fat_value(i) too. */
#ifndef FAT_H
#define FAT_H
#include <stddef.h>
#include <stdint.h>

#ifdef FAT_CODE
#define FAT_CODE_IS ".incbin \"" FAT_CODE "\"\n"
#define FAT_DATA_IS ".incbin \"" FAT_DATA "\"\n"
#else
#define FAT_STRING(x) #x
#define FAT_NUMBER(x) FAT_STRING(x)
#define FAT_VALUE(i) "((" i " * 2654435761 + 12345) & 0xffffffff)"
#ifdef __aarch64__ /* movz w0, #low; movk w0, #high, lsl 16; ret */
#define FAT_FUNCTION ".long 0x52800000 | (fat_n & 0xffff) << 5, 0x72a00000 | (fat_n >> 16) << 5, 0xd65f03c0\n"
#else /* mov $n, %eax; ret */
#define FAT_FUNCTION ".byte 0xb8\n.long fat_n\n.byte 0xc3\n"
#endif
#define FAT_CODE_IS                                                                        \
	".set fat_i, 0\n.rept " FAT_NUMBER(FAT_FUNCTIONS) "\n.set fat_n, " FAT_VALUE("fat_i") "\n" \
	FAT_FUNCTION ".balign 64, 0x5a\n.set fat_i, fat_i + 1\n.endr\n"
#define FAT_DATA_IS                                                                               \
	".set fat_i, 0\n.rept " FAT_NUMBER(FAT_FUNCTIONS) "\n.irp fat_k, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n" \
	".long " FAT_VALUE("(fat_i + \\fat_k)") "\n.endr\n.set fat_i, fat_i + 16\n.endr\n"
#endif

__asm__(".pushsection .text\n"
        ".balign 64\n"
        ".hidden fat_code\nfat_code:\n" FAT_CODE_IS
        ".hidden fat_code_end\nfat_code_end:\n"
        ".type fat_code, %function\n.size fat_code, fat_code_end - fat_code\n"
        ".popsection\n"
        ".pushsection .rodata,\"a\"\n"
        ".balign 64\n"
        ".hidden fat_data\nfat_data:\n" FAT_DATA_IS
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
