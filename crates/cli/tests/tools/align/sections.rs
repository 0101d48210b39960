// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate` of files whose section table is loaded, as patchelf(1) leaves it, and of files with sections
//! that are not loaded and hold addresses.

use crate::align::debug::built;
use crate::align::relaid::align;
use crate::align::separate::{ALL, folder};
use crate::common::Cmd;
use crate::common::build::must;
use crate::need;
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_relink::separate::{Options, proof, separate};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"#include <stdio.h>
static __thread char block[0x3000];
__attribute__((noinline)) static int inner(int n) { block[n] = n; return block[n % 4]; }
int main(int argc, char **argv) { (void)argv; printf("%d\n", inner(argc)); return 0; }
"#;

/// Puts the section table into a segment of its own at the end of the file. The header of a note becomes that of the
/// segment.
fn with_loaded_table(file: &[u8]) -> Vec<u8> {
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let kind = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let headers: Vec<usize> = (0..usize::from(file[0x38])).map(|i| number(0x20) as usize + 56 * i).collect();
    let last = *headers.iter().rfind(|at| kind(**at) == 1).expect("a segment");
    let note = *headers.iter().find(|at| **at > last && kind(**at) == 4).expect("a note");
    let address = (number(last + 16) + number(last + 40)).next_multiple_of(4096);
    let (table, size) = (number(0x28) as usize, usize::from(file[0x3c]) * 64);
    let table = file[table..table + size].to_vec();
    let mut file = file.to_vec();
    file.resize(file.len().next_multiple_of(4096), 0);
    let offset = file.len() as u64;
    let words = [1 | 6 << 32, offset, address, address, size as u64, size as u64, 4096];
    file[note..note + 56].copy_from_slice(&words.map(u64::to_le_bytes).concat());
    file[0x28..0x30].copy_from_slice(&offset.to_le_bytes());
    file.extend_from_slice(&table);
    file
}

/// What is loaded stays the same, also where it is the section table.
#[test]
fn issue_29_a3_a_section_table_that_is_loaded_stays_there() {
    need!("gcc", "strip", "readelf");
    let dir = folder();
    let made = built(dir.path(), ("a.c", SOURCE), &[]);
    let [program, copy] = ["patched", "copy"].map(|name| dir.path().join(name));
    // Without debug information, and with compressed one, which is unpacked.
    for prepare in [&["strip", "-o"][..], &["objcopy", "--compress-debug-sections=zlib"]] {
        let mut command = Command::new(prepare[0]);
        command.args(&prepare[1..]);
        let words = if prepare[0] == "strip" { [&program, &made.whole] } else { [&made.whole, &program] };
        must(command.args(words));
        let original = with_loaded_table(&std::fs::read(&program).expect("read"));
        std::fs::write(&program, &original).expect("write");
        let out = align(&program, &copy, &ALL);
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&program]).bare());
        let listed = must(Command::new("readelf").args(["-SW"]).arg(&copy));
        assert!(listed.contains(".text"), "{listed}");
        let [before, after] = [original, std::fs::read(&copy).expect("read")].map(|bytes| {
            let segments = Headers::parse(&bytes).expect("headers").segments;
            let last = *segments.last().expect("a segment");
            bytes[last.offset as usize..(last.offset + last.filesz) as usize].to_vec()
        });
        assert!(before == after, "the loaded bytes changed");
    }
}

/// Builds a program with a section of this name that is not loaded.
fn with_section(dir: &Path, name: &str, content: &str) -> PathBuf {
    let section = format!("__asm__(\".section {name},\\\"\\\",@progbits\\n{content}\\n.text\");\n");
    built(dir, ("a.c", &format!("{SOURCE}{section}")), &[]).whole
}

/// Returns the words of eight bytes at these offsets of a section.
fn words<const N: usize>(file: &Path, name: &str, at: [usize; N]) -> [u64; N] {
    let out = file.with_extension("section");
    let dump = format!("--dump-section={name}={}", out.display());
    must(Command::new("objcopy").arg(dump).arg(file).arg(file.with_extension("other")));
    let bytes = std::fs::read(out).expect("a section");
    at.map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")))
}

/// `clang -fstack-size-section` lists the address of each function with the size of its stack.
#[test]
fn issue_29_a3_addresses_of_the_sizes_of_stacks_move() {
    need!("gcc", "objcopy", "nm");
    let dir = folder();
    let program = with_section(
        dir.path(),
        ".stack_sizes",
        ".quad main\\n.uleb128 300\\n.quad 0\\n.uleb128 1\\n.quad inner\\n.uleb128 8",
    );
    let copy = dir.path().join("copy");
    let out = align(&program, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    let listed = must(Command::new("nm").arg(&copy));
    let address = |name: &str| {
        let line = listed.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("it is there");
        u64::from_str_radix(line.split(' ').next().expect("a word"), 16).expect("a number")
    };
    let places = [0, 10, 19];
    assert_eq!(words(&copy, ".stack_sizes", places), [address("main"), 0, address("inner")]);
    assert_ne!(words(&program, ".stack_sizes", places)[0], address("main"));
    // The proof finds an address that did not move.
    let original = std::fs::read(&program).expect("read");
    let separated = separate(&original, PageSize::MB2, Options { least: 1 }).expect("separated before");
    let mut broken = separated.bytes.clone();
    let moved = [&address("main").to_le_bytes()[..], &[0xac, 0x02]].concat();
    let at = broken.windows(10).position(|w| w == moved).expect("the section");
    broken[at..at + 8].copy_from_slice(&words(&program, ".stack_sizes", [0])[0].to_le_bytes());
    let flaw = proof::check(&original, &broken, &separated.distances).expect_err("it did not move");
    assert!(flaw.to_string().contains("a size of a stack"), "{flaw}");
}

/// What is not known to hold no addresses is looked at.
#[test]
fn issue_29_a3_a_section_of_an_unknown_kind_is_refused_if_it_may_hold_an_address() {
    need!("gcc", "objcopy");
    let dir = folder();
    let copy = dir.path().join("copy");
    for (name, content) in [(".pseudo_probe", ".byte 1\\n.quad inner"), (".of_a_tool", ".quad 7, main + 3")] {
        let program = with_section(dir.path(), name, content);
        let out = align(&program, &copy, &ALL);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(125), "{said}");
        assert!(said.contains(&format!("the section {name} is of an unknown kind")), "{said}");
        // The command that the message names helps.
        let hint = format!("objcopy -R {name} ");
        assert!(said.contains(&hint), "{said}");
        must(Command::new("objcopy").args(["-R", name]).arg(&program));
        let out = align(&program, &copy, &ALL);
        assert!(out.status.success(), "{out:?}");
        assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&program]).bare());
    }
    // Text is none, also where it ends in what could be an address: ".)" and six zeros.
    let text = ".ascii \\\"this function is dangerous (see getcwd).\\\"\\n.quad main";
    let program = with_section(dir.path(), ".gnu.warning.getwd", text);
    let out = align(&program, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    // Numbers and text are no addresses.
    let program = with_section(
        dir.path(),
        ".of_a_tool",
        ".quad 7, 0x123456789abc\\n.asciz \\\"some words\\\"\\n.long 5, 6, 7",
    );
    let out = align(&program, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
}
