// SPDX-License-Identifier: Apache-2.0
//! Arrays whose address in an instruction is less an offset, as gcc folds a constant index into it: at some
//! offsets that is an address near the beginning of the file. Each copy that is made must run as its original does.

use crate::align::relaid::align;
use crate::common::build::must;
use crate::{need, skip};
use std::path::Path;
use std::process::Command;

/// Prints entry `y` of an array, whose address is `BIAS` entries of 4 bytes less in the instruction. The array is the
/// first of the writable data, so the linker's script decides its address.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((aligned(4096))) int table[4096] = {1, 2, 3, 5, 8, 13, 21};
__asm__(".text\n.fill 700000, 1, 0x90\n");
__attribute__((noinline)) int at(long y) {
  int value;
  __asm__("lea table-%c2(%%rip), %%rax\n\tmov (%%rax,%1,1), %0" : "=r"(value) : "r"(y + (long)(BIAS)), "i"(BIAS) : "rax");
  return value;
}
int main(int argc, char **argv) { (void)argv; return printf("%d\n", at(4 * (argc + 2))) != 2; }
"#;

fn build(dir: &Path, bias: u64, strip: bool) -> std::path::PathBuf {
    let (source, output) = (dir.join("biased.c"), dir.join("biased"));
    std::fs::write(&source, SOURCE).expect("write a source");
    let options = ["-O2", "-fPIE", "-pie", "-Wl,-z,separate-code", "-o"];
    must(Command::new("gcc").args(options).arg(&output).arg(&source).arg(format!("-DBIAS={bias}")));
    if strip {
        must(Command::new("strip").arg(&output));
    }
    output
}

fn symbol(program: &Path, name: &str) -> u64 {
    let listed = must(Command::new("nm").arg(program));
    let line = listed.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("it is there");
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

#[test]
fn an_array_less_an_offset_is_not_taken_for_what_lies_before_the_code() {
    need!("gcc", "nm", "strip");
    if cfg!(not(target_arch = "x86_64")) {
        skip!("its code is of x86-64");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let table = symbol(&build(dir.path(), 0, false), "table");
    let copy = dir.path().join("copy");
    let mut separated = 0;
    for to in [0, 1, 4, 24, 40, 63, 64, 0x318, 0x334, 0x338, 0x358, 0x378, 0x37c, 0x39c, 0x3a0, 0x1000] {
        for strip in [false, true] {
            let program = build(dir.path(), table - to, strip);
            let bare = must(&mut Command::new(&program));
            let out = align(&program, &copy, &["--separate", "--least", "1"]);
            if out.status.success() {
                separated += 1;
                assert_eq!(must(&mut Command::new(&copy)), bare, "{to:#x}, stripped {strip}");
                std::fs::remove_file(&copy).expect("remove the copy");
            } else {
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                let refers = said.contains(" refers to ") || said.contains("seem to refer, to ");
                assert!(refers, "{to:#x}: {said}");
            }
        }
    }
    // The address of the program's own code moves with it. So do all addresses, if everything moves.
    assert!(separated > 0, "all were refused");
}
