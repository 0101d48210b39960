// SPDX-License-Identifier: Apache-2.0
//! The symbols that compiled code refers to without naming them in its source.

use core::arch::global_asm;

/// Ends the process. Only a defect of this crate leads here; nothing unwinds.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    crate::sys::exit()
}

// Parts of `core` that were compiled for unwinding refer to it; nothing calls it.
global_asm!(".hidden rust_eh_personality", ".globl rust_eh_personality", "rust_eh_personality:");

// Hidden, as the program has its own and faster ones.
//
// Arguments are in rdi, rsi and rdx, results in rax. The direction flag is clear at a call.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".hidden memcpy, memmove, memset, memcmp, bcmp, strlen",
    ".globl memcpy, memmove, memset, memcmp, bcmp, strlen",
    "memcpy:",
    "mov rax, rdi", // the result is the destination
    "mov rcx, rdx", // bytes to copy
    "rep movsb",    // copy rcx bytes from [rsi] to [rdi]
    "ret",
    "memmove:",
    "mov rax, rdi", // the result is the destination
    "mov rcx, rdx", // bytes to copy
    "cmp rdi, rsi",
    "jbe 2f",                   // a destination below the source: copy upwards
    "lea rdi, [rdi + rcx - 1]", // otherwise start at the last byte of each
    "lea rsi, [rsi + rcx - 1]",
    "std", // and copy downwards
    "2:",
    "rep movsb", // copy rcx bytes from [rsi] to [rdi]
    "cld",       // the ABI requires a clear flag
    "ret",
    "memset:",
    "mov r8, rdi",  // save the destination
    "mov eax, esi", // the byte to store, in al
    "mov rcx, rdx", // bytes to store
    "rep stosb",    // store al rcx times from [rdi] on
    "mov rax, r8",  // the result is the destination
    "ret",
    "bcmp:",
    "memcmp:",
    "xor eax, eax", // equal, if there is no byte
    "3:",
    "test rdx, rdx", // no byte left: equal
    "jz 4f",
    "movzx eax, byte ptr [rdi]", // the next byte of each
    "movzx ecx, byte ptr [rsi]",
    "inc rdi",
    "inc rsi",
    "dec rdx",
    "sub eax, ecx", // the result is their difference
    "jz 3b",
    "4:",
    "ret",
    "strlen:",
    "mov rax, rdi", // start at the first byte
    "5:",
    "cmp byte ptr [rax], 0", // the end?
    "je 6f",
    "inc rax",
    "jmp 5b",
    "6:",
    "sub rax, rdi", // the end less the start
    "ret",
);

// Hidden, as above. Arguments are in x0, x1 and x2, results in x0.
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".hidden memcpy, memmove, memset, memcmp, bcmp, strlen",
    ".globl memcpy, memmove, memset, memcmp, bcmp, strlen",
    "memcpy:",
    "memmove:",
    "mov x3, x0", // x0 stays: the result is the destination
    "cmp x0, x1",
    "b.hi 2f", // a destination above the source: copy downwards
    "1:",
    "cbz x2, 4f",        // no byte left
    "ldrb w4, [x1], #1", // read a byte, step upwards
    "strb w4, [x3], #1", // write it, step upwards
    "sub x2, x2, #1",
    "b 1b",
    "2:",
    "cbz x2, 4f", // no byte left
    "sub x2, x2, #1",
    "ldrb w4, [x1, x2]", // read the last byte that is left
    "strb w4, [x3, x2]", // write it
    "b 2b",
    "4:",
    "ret",
    "memset:",
    "mov x3, x0", // x0 stays: the result is the destination
    "5:",
    "cbz x2, 4b",        // no byte left
    "strb w1, [x3], #1", // store the byte, step upwards
    "sub x2, x2, #1",
    "b 5b",
    "bcmp:",
    "memcmp:",
    "mov x3, x0",
    "mov w0, wzr", // equal, if there is no byte
    "6:",
    "cbz x2, 4b",        // no byte left: equal
    "ldrb w4, [x3], #1", // the next byte of each
    "ldrb w5, [x1], #1",
    "sub x2, x2, #1",
    "subs w0, w4, w5", // the result is their difference
    "b.eq 6b",
    "ret",
    "strlen:",
    "mov x1, x0",
    "7:",
    "ldrb w2, [x1], #1", // read a byte, step upwards
    "cbnz w2, 7b",       // not the end
    "sub x0, x1, x0",    // bytes read
    "sub x0, x0, #1",    // without the NUL
    "ret",
);
