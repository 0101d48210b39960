// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate` of files whose code shares its huge pages with constants: what lld and mold make, and
//! programs for fixed addresses.

use crate::align::linkers::linker_dir;
use crate::align::relaid::align;
use crate::align::separate::{ALL, code_is_huge, folder};
use crate::common::build::must;
use crate::common::{Cmd, End, fat, find, fits, skipped};
use crate::{need, skip};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_relink::separate::{Options, Way, proof, separate};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has as much code and as many constants as the command line says, in bytes.
const SOURCE: &str = r#"
#include <stdio.h>
#define TEXT(s) #s
#define VALUE(s) TEXT(s)
__asm__(".section .rodata\n.globl many\nmany: .fill " VALUE(CONSTANTS) ", 1, 7\n.text\n.fill " VALUE(CODE) ", 1, 0x90\n");
extern const char many[];
static int wrong;
int *volatile pointer = &wrong;
static int value(int n) {
    switch (n) {
    case 1: return 7; case 2: return printf("two\n"); case 3: return *pointer; case 4: return many[CONSTANTS - 1];
    case 5: return 9; case 6: return many[0];
    }
    return -1;
}
int main(int argc, char **argv) {
    *pointer = 5;
    return printf("%d %d %d %d\n", value(argc), value(argc + 1), value(argc + 2), value(argc + 3)) != 8;
}
"#;

/// Builds a program with this many bytes of code and of constants.
fn program(dir: &Path, (code, constants): (u64, u64), flags: &[&str]) -> PathBuf {
    let (source, output) = (dir.join("a.c"), dir.join("program"));
    std::fs::write(&source, SOURCE).expect("write a source");
    let sizes = [format!("-DCODE={code}"), format!("-DCONSTANTS={constants}")];
    must(Command::new("cc").args(["-O1", "-o"]).arg(&output).args(sizes).args(flags).arg(&source));
    output
}

/// Separates a program; all of its code is huge, it runs as before, and no page can be written to and run. Returns what
/// the command says.
fn separated(program: &Path, dir: &Path) -> serde_json::Value {
    let copy = dir.join("copy");
    let out = align(program, &copy, &[&ALL[..], &["--json"]].concat());
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let said = serde_json::from_slice(&out.stdout).expect("JSON");
    fits("align-separate", &said);
    let (_, has_pages) = code_is_huge(program, &copy);
    let headers = Headers::parse(&std::fs::read(&copy).expect("read")).expect("an ELF file");
    assert!(headers.segments.iter().all(|s| !(s.prot.write && s.prot.exec)), "{headers:?}");
    let bare = Cmd::new([program]).bare();
    assert_eq!(bare.end, End::Code(0), "{bare:?}");
    assert_eq!(Cmd::new([&copy]).bare(), bare);
    if !has_pages {
        skipped("this file system has no huge pages in the page cache");
    }
    said
}

/// The code of lld and mold lies between constants and data. Its last page cannot be shared with data, so its first one is
/// shared with constants.
fn between_constants_and_data(linker: &str) {
    let Some(linkers) = linker_dir(&format!("ld.{linker}")) else { skip!("needs ld.{linker}") };
    let dir = folder();
    let found = [format!("-fuse-ld={linker}"), format!("-B{}/", linkers.path().display())];
    let flags = [&found[0][..], &found[1], "-fPIE", "-pie"];
    // More constants than fit into the huge page, and so few that no more than the header tables is left of their segment.
    for constants in [5_000_000, 5_000] {
        let said = separated(&program(dir.path(), (3_000_000, constants), &flags), dir.path());
        assert_eq!(said["separated"], "all", "{said}");
        let executable = said["constants_executable_bytes"].as_u64().expect("a number");
        assert!((1..2 << 20).contains(&executable), "{said}");
    }
    let said = separated(&program(dir.path(), (700_000, 5_000), &flags), dir.path());
    assert_eq!(said["separated"], "all", "{said}");
}

#[test]
fn code_of_lld_is_huge_to_its_end() {
    need!("cc");
    between_constants_and_data("lld");
}

#[test]
fn code_of_mold_is_huge_to_its_end() {
    need!("cc");
    between_constants_and_data("mold");
}

/// No address of a program for fixed addresses can move, but the edges of its segments can.
#[test]
fn a_program_for_fixed_addresses_gets_the_huge_pages_that_constants_share() {
    need!("cc");
    let dir = folder();
    let flags = ["-fno-pie", "-no-pie", "-Wl,-z,separate-code", "-fuse-ld=bfd"];
    let program = program(dir.path(), (3_000_000, 5_000_000), &flags);
    let copy = dir.path().join("copy");
    let out = align(&program, &copy, &[&ALL[..], &["--json"]].concat());
    assert!(out.status.success(), "{out:?}");
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&said["separated"], &said["moved"][0]["by"]), (&"none".into(), &0.into()), "{said}");
    assert_eq!(said["aslr_bits_lost"], 0, "{said}");
    let code = said["segments"].as_array().expect("segments").iter().find(|s| s["prot"] == "r-x");
    let code = code.expect("a segment with code");
    let number = |name: &str| code[name].as_u64().expect("a number");
    assert!(number("huge_bytes_after") > number("huge_bytes_before"), "{said}");
    assert_eq!(Cmd::new([&copy]).bare(), Cmd::new([&program]).bare());
    // Its first huge page begins with the header tables, without which no program loads.
    let again = align(&copy, &dir.path().join("again"), &ALL);
    assert_eq!(again.status.code(), Some(125), "{again:?}");
    let text = align(&program, &copy, &ALL);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("its addresses stay") && text.contains("are executable now"), "{text}");
    // Nothing but data that can be written to lies behind this one's code.
    let stays = fat("sums").flags(&["-no-pie", "-Wl,-z,noseparate-code"]).build();
    let out = align(&stays, &dir.path().join("none"), &["--separate"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("fixed addresses"), "{out:?}");
}

/// Constants may be executable in the huge pages of code, and nowhere else.
#[test]
fn constants_that_are_executable_without_need_are_found() {
    need!("cc");
    let Some(linkers) = linker_dir("ld.lld") else { skip!("needs ld.lld") };
    let dir = folder();
    let found = format!("-B{}/", linkers.path().display());
    let flags = ["-fuse-ld=lld", &found, "-fPIE", "-pie"];
    let original = std::fs::read(program(dir.path(), (3_000_000, 5_000_000), &flags)).expect("read");
    let copy = separate(&original, PageSize::MB2, Options { least: 1 }).expect("separated");
    assert!(matches!(copy.way, Way::All { .. }) && copy.gains.iter().any(|g| g.constants > 0));
    let check = |bytes: &[u8]| proof::check(&original, bytes, &copy.distances);
    assert!(check(&copy.bytes).is_ok());
    // Moves the edge between constants and code by a huge page, and by a page, down.
    for by in [2 << 20, 4096u64] {
        let mut bad = copy.bytes.clone();
        let word =
            |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let loads: Vec<usize> =
            (0..16).map(|i| 64 + 56 * i).filter(|&at| word(&bad, at) as u32 == 1).collect();
        let [constants, code] = [loads[0], loads[1]];
        assert_eq!((bad[constants + 4], bad[code + 4]), (4, 5), "readable, executable");
        // Offset, both addresses, both sizes.
        let fields =
            [(code, 8, false), (code, 16, false), (code, 24, false), (code, 32, true), (code, 40, true)];
        let fields = fields.into_iter().chain([(constants, 32, false), (constants, 40, false)]);
        for (header, field, grows) in fields {
            let at = header + field;
            let old = word(&bad, at);
            let new = if grows { old + by } else { old - by };
            bad[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        let flaw = check(&bad).expect_err("constants are executable without need");
        assert!(flaw.to_string().contains("other protections"), "{flaw}");
    }
}

/// Loaders align the first address to the largest alignment of all segments, on which data may rely.
#[test]
fn a_larger_alignment_than_that_of_huge_pages_is_kept() {
    need!("cc");
    let dir = folder();
    let [source, original, copy] = ["a.c", "original", "copy"].map(|name| dir.path().join(name));
    let text = r#"
        #include <stdio.h>
        char aligned[4096] __attribute__((aligned(8 << 20)));
        __asm__(".text\n.fill 3000000, 1, 0x90\n");
        int main(void) { return printf("%lu\n", (unsigned long)aligned % (8 << 20)) != 2; }"#;
    std::fs::write(&source, text).expect("write a source");
    let flags = ["-O1", "-fPIE", "-pie", "-fuse-ld=bfd", "-Wl,-z,max-page-size=0x800000", "-o"];
    must(Command::new("cc").args(flags).arg(&original).arg(&source));
    let out = align(&original, &copy, &ALL);
    assert!(out.status.success(), "{out:?}");
    // At a random address this would be 0 once in four runs.
    for _ in 0..8 {
        assert_eq!(Cmd::new([&copy]).bare().stdout, "0\n");
    }
}

/// Files of AArch64 are linked for base pages of 64 kB. All segments keep their places in such pages, so that RELRO is
/// protected on each machine, and traps fill the code up to the edge of its last huge page.
#[test]
fn files_of_aarch64_stay_right_for_each_base_page() {
    let newest = || (14..40).rev().find_map(|n| find(&format!("clang-{n}")));
    let Some(clang) = find("clang").or_else(newest) else { skip!("needs clang") };
    let Some(linkers) = linker_dir("ld.lld") else { skip!("needs ld.lld") };
    let (dir, base) = (folder(), 64 << 10);
    let [source, original, copy] = ["a.c", "original", "copy"].map(|name| dir.path().join(name));
    std::fs::write(&source, OF_AARCH64).expect("write a source");
    for layout in ["-Wl,--rosegment", "-Wl,--no-rosegment"] {
        let mut command = Command::new(&clang);
        command.args(["--target=aarch64-linux-gnu", "-nostdlib", "-shared", "-fPIC", "-O1", layout, "-o"]);
        command.arg(&original).arg(&source).arg("-Wl,-z,max-page-size=65536");
        must(command.arg(format!("--ld-path={}", linkers.path().join("ld.lld").display())));
        let out = align(&original, &copy, &ALL);
        assert!(out.status.success(), "{layout}: {out:?}");
        let [before, after] = [&original, &copy]
            .map(|path| Headers::parse(&std::fs::read(path).expect("read")).expect("an ELF file"));
        let code = after.segments.iter().find(|s| s.prot.exec).expect("code");
        let end = (code.vaddr + code.filesz).next_multiple_of(4096);
        assert_eq!([code.vaddr, code.offset, end].map(|at| at % (2 << 20)), [0; 3], "{layout}: {code:?}");
        let end = |headers: &Headers| headers.relro.map(|relro| (relro.vaddr + relro.size) % base);
        assert!(end(&before).is_some() && end(&before) == end(&after), "{layout}: {before:?} {after:?}");
        for two in after.segments.windows(2) {
            let last = two[0].vaddr + two[0].memsz - 1;
            assert!(last / base < two[1].vaddr / base, "{layout}: {two:?} share a page");
        }
        assert!(after.segments.iter().all(|s| s.offset % base == s.vaddr % base), "{layout}: {after:?}");
    }
}

const OF_AARCH64: &str = r#"
static int value = 3;
extern int other(int);
int *const pointers[] = {&value, &value};
__asm__(".section .rodata\n.fill 200000, 1, 7\n.text\n.fill 700000, 1, 0\n");
int (*volatile calls[2])(int) = {other, other};
int entry(int n) { return *pointers[n & 1] + calls[n & 1](n); }
"#;
