// SPDX-License-Identifier: Apache-2.0
//! A Rust program with megabytes of code: panics below three functions, catches it, and prints
//! the backtrace's own functions; then whether its code is what it should be.

use std::backtrace::Backtrace;

std::arch::global_asm!(
    ".pushsection .text",
    ".balign 64",
    ".globl fat_code",
    "fat_code:",
    concat!(".incbin \"", env!("FAT_CODE"), "\""),
    ".globl fat_code_end",
    "fat_code_end:",
    ".popsection",
);

unsafe extern "C" {
    static fat_code: u8;
    static fat_code_end: u8;
}

#[inline(never)]
fn third(n: u32) -> u32 {
    let trace = Backtrace::force_capture().to_string();
    for line in trace.lines().filter(|l| l.contains(": moved::")) {
        println!("{}", line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' '));
    }
    if n > 0 {
        panic!("below");
    }
    n + 1
}

#[inline(never)]
fn second(n: u32) -> u32 {
    third(n) + 1
}

#[inline(never)]
fn first(n: u32) -> u32 {
    second(n) + 1
}

fn main() {
    println!("base {:#x}", first as fn(u32) -> u32 as usize);
    let one = u32::try_from(std::env::args().count()).unwrap_or(1);
    let caught = std::panic::catch_unwind(|| first(one));
    println!("caught {}", caught.is_err());
    let value = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(12345);
    // SAFETY: the symbols are the ends of an array of functions of 64 bytes.
    let (start, end) = unsafe { (&raw const fat_code as usize, &raw const fat_code_end as usize) };
    let wrong = (0..(end - start) / 64).filter(|i| {
        // SAFETY: number i of them takes nothing and returns value(i).
        let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(start + 64 * i) };
        function() != value(*i as u32)
    });
    println!("wrong {}", wrong.count());
}
