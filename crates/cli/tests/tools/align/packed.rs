// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate` of files whose debug information is compressed, or a file within the file; and of
//! notes that say how code was built.

use crate::align::debug::{Built, built};
use crate::align::relaid::align;
use crate::align::separate::{ALL, folder};
use crate::common::build::must;
use crate::common::{Cmd, find};
use crate::{need, skip};
use hugelift_core::addr::PageSize;
use hugelift_relink::separate::{Options, proof, separate};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"#include <stdio.h>
static int table[9];
__attribute__((noinline)) static int inner(int n) { table[n % 9] += n; return table[n % 4]; }
__attribute__((noinline)) static int outer(int n) { int r = inner(n) + 1; __asm__("" : "+r"(r)); return r; }
int main(int argc, char **argv) { printf("%d\n", outer(argc)); return 0; }
"#;

/// Returns the bytes of a section, which objcopy takes out.
fn section(file: &Path, name: &str) -> Vec<u8> {
    let out = file.with_extension("section");
    let dump = format!("--dump-section={name}={}", out.display());
    must(Command::new("objcopy").arg(dump).arg(file).arg(file.with_extension("other")));
    std::fs::read(out).expect("a section")
}

/// Returns how many debug sections are compressed.
fn compressed(file: &Path) -> usize {
    let listed = must(Command::new("readelf").args(["-SW"]).arg(file));
    let debug = listed.lines().filter(|line| line.contains("debug_"));
    debug.filter(|line| line.contains(" C ") || line.contains(".zdebug_")).count()
}

#[test]
fn compressed_debug_information_is_that_of_the_uncompressed_file() {
    need!("gcc", "objcopy", "readelf");
    let dir = folder();
    let made = built(dir.path(), ("a.c", SOURCE), &[]);
    let plain = dir.path().join("plain");
    let out = align(&made.whole, &plain, &ALL);
    assert!(out.status.success(), "{out:?}");
    let names = [".debug_info", ".debug_line", ".debug_str", ".debug_abbrev", ".symtab"];
    let mut done = 0;
    for packing in ["zlib", "zlib-gnu", "zstd"] {
        let [packed, copy] = ["packed", "copy"].map(|name| dir.path().join(format!("{name}-{packing}")));
        let option = format!("--compress-debug-sections={packing}");
        let out =
            Command::new("objcopy").arg(option).arg(&made.whole).arg(&packed).output().expect("objcopy");
        if !out.status.success() {
            println!("objcopy cannot compress by {packing}");
            continue;
        }
        assert!(compressed(&packed) > 0, "{packing}");
        let out = align(&packed, &copy, &ALL);
        assert!(out.status.success(), "{packing}: {out:?}");
        for name in names {
            assert!(section(&copy, name) == section(&plain, name), "{packing}: {name}");
        }
        assert_eq!(compressed(&copy), 0, "{packing}");
        assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&packed]).bare(), "{packing}");
        breaks(&packed, &copy);
        done += 1;
    }
    assert!(done >= 2, "objcopy compressed {done} files");
}

/// Checks that the proof finds changed bits in the sections of the copy.
fn breaks(original: &Path, copy: &Path) {
    let [original, copy] = [original, copy].map(|path| std::fs::read(path).expect("read"));
    let separated = separate(&original, PageSize::MB2, Options { least: 1 }).expect("separated before");
    assert!(separated.bytes == copy);
    let loaded = copy.len() / (2 << 20) * (2 << 20);
    let mut random = fastrand::Rng::with_seed(18);
    let table = u64::from_le_bytes(copy[0x28..0x30].try_into().expect("8 bytes"));
    for _ in 0..60 {
        let at = random.usize(loaded..table as usize);
        if copy[at] == 0 {
            continue;
        }
        let mut broken = copy.clone();
        broken[at] ^= 1 << random.u8(..8);
        let flaw = proof::check(&original, &broken, &separated.distances);
        assert!(flaw.is_err(), "a bit at {at:#x} changed, and nothing is found");
    }
}

/// What is not what its header states is one line, and no copy.
#[test]
fn damaged_compressed_sections_are_refused() {
    need!("gcc", "objcopy", "readelf");
    let dir = folder();
    let made = built(dir.path(), ("a.c", SOURCE), &[]);
    let packed = dir.path().join("packed");
    must(Command::new("objcopy").arg("--compress-debug-sections=zlib").arg(&made.whole).arg(&packed));
    let bytes = std::fs::read(&packed).expect("read");
    // The header of a section: its method, its size, its alignment. Then zlib begins.
    let header = [1u32.to_le_bytes(), [0; 4]].concat();
    let places: Vec<usize> =
        bytes.windows(8).enumerate().filter(|(_, w)| *w == header).map(|(i, _)| i).collect();
    let is_header = |at: &&usize| {
        let size = u64::from_le_bytes(bytes[**at + 8..**at + 16].try_into().expect("8 bytes"));
        (1..100_000).contains(&size) && bytes[**at + 16..**at + 25] == [1, 0, 0, 0, 0, 0, 0, 0, 0x78]
    };
    let at = *places.iter().find(is_header).expect("a compressed section");
    let changed = |offset: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at + offset..at + offset + with.len()].copy_from_slice(with);
        bytes
    };
    for (what, bytes, words) in [
        ("another size", changed(8, &7u64.to_le_bytes()), "not what its header states"),
        ("a huge size", changed(8, &(1u64 << 40).to_le_bytes()), "64 times as long"),
        ("an unknown method", changed(0, &9u32.to_le_bytes()), "unknown form"),
        ("no zlib", changed(24, &[0xff; 8]), "not what its header states"),
    ] {
        let bad = dir.path().join("bad");
        std::fs::write(&bad, bytes).expect("write");
        let out = align(&bad, &dir.path().join("none"), &ALL);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{what}: {said}");
        assert!(said.contains(words), "{what}: {said}");
    }
}

/// Returns the program with symbols in `.gnu_debugdata`, and a file with the bytes of that section.
fn with_mini(dir: &Path, made: &Built) -> (PathBuf, PathBuf) {
    let [mini, program] = ["mini", "with-mini"].map(|name| dir.join(name));
    let keep = ["-S", "--keep-symbol=inner", "--keep-symbol=outer"];
    must(Command::new("objcopy").args(keep).arg(&made.debug).arg(&mini));
    must(Command::new("xz").arg("--check=crc64").arg(&mini));
    let packed = mini.with_extension("xz");
    let add = format!("--add-section=.gnu_debugdata={}", packed.display());
    must(Command::new("objcopy").args(["-R", ".gnu_debuglink", &add]).arg(&made.program).arg(&program));
    (program, packed)
}

/// `.gnu_debugdata`: gdb finds functions of the stripped copy by the symbols in it.
#[test]
fn the_symbols_of_mini_debug_info_move() {
    need!("gcc", "objcopy", "gdb", "xz", "nm");
    let lzma = must(Command::new(find("gdb").expect("needed")).arg("--configuration"));
    if !lzma.contains("--with-lzma") {
        skip!("gdb cannot read .gnu_debugdata");
    }
    for layout in ["-Wl,-z,separate-code", "-Wl,-z,noseparate-code"] {
        let dir = folder();
        let made = built(dir.path(), ("a.c", SOURCE), &[layout]);
        let copy = dir.path().join("copy");
        let (program, packed) = with_mini(dir.path(), &made);
        let out = align(&program, &copy, &ALL);
        assert!(out.status.success(), "{layout}: {out:?}");
        let mut gdb = Command::new(find("gdb").expect("needed"));
        gdb.args(["-nx", "-batch", "-iex", "set debug-file-directory /nonexistent"]);
        gdb.args(["-ex", "break inner", "-ex", "run", "-ex", "bt"]).arg(&copy);
        let shown = must(&mut gdb);
        let frames = ["in inner ()", "in outer ()"].map(|name| shown.find(name));
        assert!(frames.iter().all(Option::is_some) && frames.is_sorted(), "{layout}: {shown}");
        breaks(&program, &copy);
        let new = section(&copy, ".gnu_debugdata");
        let checked = dir.path().join("checked.xz");
        std::fs::write(&checked, &new).expect("write");
        must(Command::new("xz").args(["--test"]).arg(&checked));
        // The section of the original in the place of the new one: no symbol has moved.
        let old = std::fs::read(&packed).expect("read");
        if old.len() > new.len() {
            println!("the section of the original is longer: {} and {}", old.len(), new.len());
            continue;
        }
        let [original, mut broken] = [&program, &copy].map(|path| std::fs::read(path).expect("read"));
        let separated = separate(&original, PageSize::MB2, Options { least: 1 }).expect("separated before");
        let at = broken.windows(new.len()).rposition(|w| w == new).expect("the section");
        // Zeros behind its end are padding to xz.
        broken[at..at + new.len()].fill(0);
        broken[at..at + old.len()].copy_from_slice(&old);
        let flaw = proof::check(&original, &broken, &separated.distances);
        assert!(flaw.is_err(), "{layout}: symbols that did not move are not found");
        println!("{}", flaw.expect_err("seen above"));
    }
}

/// Appends a segment, as patchelf(1) does: the header of a note becomes that of the segment.
fn with_appended_segment(file: &[u8]) -> Vec<u8> {
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let kind = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let headers: Vec<usize> = (0..usize::from(file[0x38])).map(|i| number(0x20) as usize + 56 * i).collect();
    let last = *headers.iter().rfind(|at| kind(**at) == 1).expect("a segment");
    let note = *headers.iter().find(|at| **at > last && kind(**at) == 4).expect("a note");
    let address = (number(last + 16) + number(last + 40)).next_multiple_of(4096);
    let mut file = file.to_vec();
    file.resize(file.len().next_multiple_of(4096), 0);
    let offset = file.len() as u64;
    let words = [1 | 4 << 32, offset, address, address, 16, 16, 4096];
    file[note..note + 56].copy_from_slice(&words.map(u64::to_le_bytes).concat());
    file.extend_from_slice(b"16 bytes of data");
    file
}

#[test]
fn sections_before_an_appended_segment_get_another_place() {
    need!("gcc", "objcopy", "readelf", "xz");
    let dir = folder();
    let made = built(dir.path(), ("a.c", SOURCE), &[]);
    let [packed, copy] = ["packed", "copy"].map(|name| dir.path().join(name));
    must(Command::new("objcopy").arg("--compress-debug-sections=zlib").arg(&made.whole).arg(&packed));
    let bytes = with_appended_segment(&std::fs::read(&packed).expect("read"));
    std::fs::write(&packed, bytes).expect("write");
    let out = align(&packed, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(compressed(&copy), 0);
    assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&packed]).bare());
    let info = must(Command::new("readelf").arg("--debug-dump=info").arg(&copy));
    assert!(info.contains("DW_AT_low_pc") && info.contains("inner"), "{info}");
    // The symbols in .gnu_debugdata are of a time when the program had other headers.
    let (program, packed) = with_mini(dir.path(), &made);
    let bytes = with_appended_segment(&std::fs::read(&program).expect("read"));
    std::fs::write(&program, bytes).expect("write");
    let out = align(&program, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    assert!(section(&copy, ".gnu_debugdata") != std::fs::read(packed).expect("read"));
    assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&program]).bare());
}

/// Notes of annobin: the region that a note applies to moves.
#[test]
fn regions_in_notes_of_how_code_was_built_move() {
    need!("gcc", "readelf");
    let notes = r#"
__asm__(".section .gnu.build.attributes, \"\", %note\n.balign 4\n"
    ".long 8, 16, 0x100\n.asciz \"GA$3p1x\"\n.quad main, main_end\n"
    ".long 8, 0, 0x100\n.asciz \"GA*abcd\"\n"
    ".long 8, 16, 0x101\n.asciz \"GA$3p1x\"\n.quad 0, 0\n.text");
__attribute__((noinline)) void behind(void) { __asm__(".globl main_end\nmain_end:"); }
"#;
    let (dir, text) = (folder(), format!("{SOURCE}{notes}"));
    let made = built(dir.path(), ("a.c", &text), &["-fno-toplevel-reorder"]);
    let copy = dir.path().join("copy");
    let out = align(&made.whole, &copy, &[&ALL[..], &["--json"]].concat());
    assert!(out.status.success(), "{out:?}");
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let by =
        said["moved"].as_array().expect("parts").last().expect("a part")["by"].as_u64().expect("a number");
    let words = |file: &Path| {
        let bytes = section(file, ".gnu.build.attributes");
        [20, 28, 76, 84].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")))
    };
    let (before, after) = (words(&made.whole), words(&copy));
    assert!(before[0] > 0x1000 && by > 0, "{before:x?}");
    assert_eq!([before[0] + by, before[1] + by, 0, 0], after);
    breaks(&made.whole, &copy);
    let copy = std::fs::read(&copy).expect("read");
    let original = std::fs::read(&made.whole).expect("read");
    let separated = separate(&original, PageSize::MB2, Options { least: 1 }).expect("separated before");
    let new = [after[0].to_le_bytes(), after[1].to_le_bytes()].concat();
    let at = copy.windows(16).position(|w| w == new).expect("the note");
    let mut broken = copy.clone();
    broken[at..at + 8].copy_from_slice(&before[0].to_le_bytes());
    assert!(proof::check(&original, &broken, &separated.distances).is_err());
}
