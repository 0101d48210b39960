/* SPDX-License-Identifier: Apache-2.0
 *
 * Code and read-only data of any size: two sections that are segments of 64 kB here. The tests
 * make them as large as the machine's huge pages require (machines/grow.rs): they make the file
 * longer and give each segment more of it.
 */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/auxv.h>

/* Each piece of the code returns its argument plus one. Behind the first piece lies a function
 * that calls its argument, with the information that debuggers and unwinders need. */
#if defined(__aarch64__)
#define PIECE ".arch armv8.5-a; bti c; add w0, w0, #1; ret"
#define THROUGH                                                                            \
  "bti c; stp x29, x30, [sp, -16]!; .cfi_def_cfa_offset 16; .cfi_offset 29, -16;"          \
  ".cfi_offset 30, -8; mov x29, sp; blr x0; ldp x29, x30, [sp], 16; .cfi_def_cfa_offset 0;" \
  ".cfi_restore 29; .cfi_restore 30; ret;"
#else
#define PIECE "lea 1(%rdi), %eax; ret"
#define THROUGH \
  "sub $8, %rsp; .cfi_adjust_cfa_offset 8; call *%rdi; add $8, %rsp; .cfi_adjust_cfa_offset -8; ret;"
#endif
__asm__(".pushsection .big.text,\"ax\",@progbits; .balign 65536; " PIECE
        "; .balign 4096, 0; .globl through_big; .type through_big, %function;"
        "through_big: .cfi_startproc; " THROUGH ".cfi_endproc; .size through_big, .-through_big;"
        ".balign 65536, 0; .popsection\n"
        ".pushsection .big.rodata,\"a\",@progbits; .balign 65536; .fill 65536, 1, 0x5a; .popsection");

#define STEP 65536
/* No other segment has a stated address this high. */
#define BIG 0x40000000ul

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

static uint64_t sum(const uint64_t *words, uint64_t bytes) {
  uint64_t s = 14695981039346656037u;
  for (uint64_t i = 0; i < bytes / 8; i++) s = ((s << 7 | s >> 57) ^ words[i]) * 1099511628211u;
  return s;
}

static void show(const char *path) {
  char line[4096];
  FILE *f = fopen(path, "r");
  puts(path);
  while (f && fgets(line, sizeof line, f)) fputs(line, stdout);
  if (f) fclose(f);
}

/* Calls each piece, prints where the parts lie and their sums, and shows smaps. Returns 0 if all
 * pieces returned what they should. */
static int look(void) {
  const Elf64_Phdr *ph = (const void *)getauxval(AT_PHDR);
  unsigned long n = getauxval(AT_PHNUM), first = 0;
  while (ph[first].p_type != PT_LOAD) first++;
  uint64_t bias = (uint64_t)__ehdr_start - (ph[first].p_vaddr - ph[first].p_offset);
  for (unsigned long i = 0; i < n; i++) {
    if (ph[i].p_type != PT_LOAD || ph[i].p_vaddr < BIG) continue;
    uint64_t at = bias + ph[i].p_vaddr;
    int code = ph[i].p_flags & PF_X;
    if (code)
      for (uint64_t k = 0; k < ph[i].p_memsz / STEP; k++)
        if (((int (*)(int))(uintptr_t)(at + k * STEP))((int)k) != (int)k + 1) return 1;
    printf("%s %lx %lx %016lx\n", code ? "text" : "rodata", at, ph[i].p_memsz,
           sum((const void *)at, ph[i].p_memsz));
  }
  show("/proc/self/smaps");
  puts("end");
  fflush(stdout);
  return 0;
}
