// SPDX-License-Identifier: Apache-2.0
//! Distances that no table records: `hugelift align --separate` refuses each file that may hold one, and the
//! proof finds each copy that a separation without that check would make.

use crate::align::relaid::align;
use crate::common::build::must;
use crate::{need, skip};
use hugelift_core::addr::PageSize;
use hugelift_relink::separate::{Options, proof, separate};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Has a place for each kind of distance, filled with a number that occurs once.
const SOURCE: &str = r#"
#include <stdio.h>
__attribute__((used, aligned(16))) unsigned long long word[2] = {0x1b2c3d4e5f607182, 0};
__attribute__((used)) int array[4] = {1};
int *volatile pointer = array;
__asm__(".text\n.globl filler\n.type filler, @function\nfiller: .byte 0x48, 0x8d, 0x05\nlea_field: .long 0x2233445a\n"
    "ret\n.byte 0x48, 0xb8\nlarge_field: .quad 0x2b1c3d4e5f607183\nret\n.fill 700000, 1, 0x90\n"
    ".size filler, . - filler\n"
    ".section .note.gnu.mine, \"a\", @note\n.balign 4\n.long 4, 8, 1\n.asciz \"abc\"\n"
    "note_field: .quad 0x3b1c2d4e5f607184\n.text");
int main(void) { return printf("%d\n", *pointer) != 2; }
"#;

struct Program {
    file: Vec<u8>,
    symbols: BTreeMap<String, u64>,
}

fn build(dir: &Path, layout: &str, strip: bool) -> Program {
    let (source, output) = (dir.join("all.c"), dir.join("all"));
    std::fs::write(&source, SOURCE).expect("write a source");
    let pie = ["-O1", "-fPIE", "-pie", "-o"];
    must(Command::new("gcc").args(pie).arg(&output).arg(&source).arg(format!("-Wl,-z,{layout}")));
    let listed = must(Command::new("nm").arg(&output));
    let symbol = |line: &str| {
        let mut words = line.split_whitespace();
        let (at, _, name) = (words.next()?, words.next()?, words.next()?);
        Some((name.to_string(), u64::from_str_radix(at, 16).ok()?))
    };
    let symbols = listed.lines().filter_map(symbol).collect();
    if strip {
        must(Command::new("strip").arg(&output));
    }
    Program { file: std::fs::read(&output).expect("read what was built"), symbols }
}

/// Writes `new` where `old` is, in each file, which has it once.
fn patched(files: [&[u8]; 2], olds: [&[u8]; 2], new: &[u8]) -> [Vec<u8>; 2] {
    [0, 1].map(|i| {
        let places: Vec<usize> = files[i]
            .windows(olds[i].len())
            .enumerate()
            .filter(|(_, w)| *w == olds[i])
            .map(|(at, _)| at)
            .collect();
        assert_eq!(places.len(), 1, "{:x?}", olds[i]);
        let mut file = files[i].to_vec();
        file[places[0]..places[0] + new.len()].copy_from_slice(new);
        file
    })
}

#[test]
fn distances_that_no_table_records_are_refused() {
    need!("gcc", "nm", "strip");
    if cfg!(not(target_arch = "x86_64")) {
        skip!("its code is of x86-64");
    }
    for (layout, way) in [("separate-code", "Code"), ("noseparate-code", "All")] {
        for strip in [false, true] {
            one_program(layout, way, strip);
        }
    }
}

fn one_program(layout: &str, way: &str, strip: bool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Program { file, symbols } = build(dir.path(), layout, strip);
    let copy = separate(&file, PageSize::MB2, Options { least: 1 }).expect("nothing wrong with it");
    assert!(format!("{:?}", copy.way).starts_with(way), "{:?}", copy.way);
    let passed = proof::check(&file, &copy.bytes, &copy.distances);
    assert!(passed.is_ok(), "{passed:?}");
    let at = |name: &str| symbols[name];
    let code = way == "Code";
    let word = 0x1b2c_3d4e_5f60_7182u64.to_le_bytes();
    let short = |from: u64, to: u64| (to.wrapping_sub(from) as u32).to_le_bytes().to_vec();
    let long = |from: u64, to: u64| to.wrapping_sub(from).to_le_bytes().to_vec();
    let unaligned = [&word[..1], &long(at("word") + 1, 0), &[0; 7]].concat();
    let same = |bytes: &[u8]| [bytes.to_vec(), bytes.to_vec()];
    // An entry of the table of relocations: its kind, then its addend.
    let entry = |addend: u64| [8u64.to_le_bytes(), addend.to_le_bytes()].concat();
    let array = [at("array"), copy.distances.image(at("array")).expect("in a part")].map(entry);
    let lea = 0x2233_445au32.to_le_bytes();
    let large = 0x2b1c_3d4e_5f60_7183u64.to_le_bytes();
    let got = at("_GLOBAL_OFFSET_TABLE_");
    // The header and the name of a note take 16 bytes.
    let note = at("note_field") - 16;
    // What is wrong, where, with which bytes; whether this way refuses it, and whether moving everything does.
    let cases = [
        ("a pointer less an offset", array.clone(), entry(if code { 0x420 } else { 72 }), true, true),
        ("a word relative to itself", same(&word), short(at("word"), 4), true, true),
        ("one to the program headers", same(&word), short(at("word"), 72), true, true),
        ("a long one that is not aligned", same(&word), unaligned, true, true),
        ("one to a note", same(&word), short(at("word"), at("note_field")), code, false),
        ("a number of the large code model", same(&large), long(got, 0), true, true),
        ("one to the program headers", same(&large), long(got, 64), true, true),
        ("one relative to the table of offsets, in data", same(&word), long(got, 0), true, true),
        ("code with the program headers", same(&lea), short(at("lea_field") + 4, 64), true, true),
        ("a pointer to the start", array, entry(0), true, true),
        ("code with the ELF header", same(&lea), short(at("lea_field") + 4, 0), true, true),
        ("code with a byte of the ELF header", same(&lea), short(at("lea_field") + 4, 24), true, true),
        ("code with the edge of a section", same(&lea), short(at("lea_field") + 4, note), code, false),
        ("a note of unknown use", same(b".note.gnu.mine\0"), b".mine".to_vec(), code, false),
    ];
    for (what, olds, new, refused, header) in cases {
        if !refused {
            continue;
        }
        let what = format!("{what}, {layout}, stripped {strip}");
        let [bad, bad_copy] = patched([&file, &copy.bytes], [&olds[0], &olds[1]], &new);
        let flaw = proof::check(&bad, &bad_copy, &copy.distances);
        assert!(flaw.is_err(), "{what}: the proof finds nothing");
        let input = dir.path().join("bad");
        std::fs::write(&input, bad).expect("write");
        let before = std::fs::read_dir(dir.path()).expect("a folder").count();
        let out = align(&input, &dir.path().join("copy"), &["--separate"]);
        let said = String::from_utf8_lossy(&out.stderr);
        // Moving everything is tried as well. It keeps all distances but those to the header tables.
        if code && !header {
            let moved = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && moved.contains("all of it moved"), "{what}: {said}");
            std::fs::remove_file(dir.path().join("copy")).expect("remove");
            continue;
        }
        assert!(matches!(out.status.code(), Some(1 | 125)), "{what}: {said}");
        let reasons =
            [" refers to ", "seem to refer, to ", "the pointer to ", "does not know what refers to it"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{what}: {said}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), before, "{what}");
        println!("{what}: {} {}", said.trim_end(), flaw.expect_err("seen above"));
    }
}
