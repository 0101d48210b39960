// SPDX-License-Identifier: Apache-2.0
// COUNT functions, one every STRIDE bytes, from `code` to `code_end`. Each makes one step of a linear
// congruential generator with an addend of its own, so that a missing or misplaced page changes the sum
// of the walk. They have one symbol and one unwind entry, `code`.
        .text
        .balign STRIDE
        .globl code, code_end
        .hidden code, code_end
        .type   code, %function
        .set number, 1
code:
        .cfi_startproc
        .rept COUNT
        .balign STRIDE
#if defined(__x86_64__)
        imul    $0x5851f42d, %rdi, %rax
        add     $number, %rax
        ret
#elif defined(__aarch64__)
        mov     w1, #0xf42d
        movk    w1, #0x5851, lsl #16
        mov     w2, #(number & 0xffff)
        movk    w2, #(number >> 16), lsl #16
        madd    x0, x0, x1, x2
        ret
#else
#error "the generated program is written for x86-64 and AArch64"
#endif
        .set number, number + 2
        .endr
        .balign STRIDE
        .cfi_endproc
code_end:
        .size   code, code_end - code
        .section .note.GNU-stack, "", %progbits
