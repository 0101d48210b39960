// SPDX-License-Identifier: Apache-2.0
//! Breaks separated files in every way that a separation could go wrong. The proof must find each: a check
//! that cannot fail proves nothing.

use crate::align::linkers::linker_dir;
use crate::common::build::must;
use crate::{need, skip};
use hugelift_core::addr::PageSize;
use hugelift_relink::separate::proof::{Flaw, check};
use hugelift_relink::separate::{Options, Separated, separate};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Has every kind of address: relocations of data, lazy calls, thread-local data, exceptions with types.
const SOURCE: &str = r#"
#include <stdexcept>
#include <string>
#include <vector>
#include <cstdio>
#ifdef FILL
__asm__(".text\n.fill 20000, 1, 0x90\n");
#endif
thread_local int counter = 7;
int table[64];
extern int *const pointers[] = {table, table + 3, table + 63};
struct Base { virtual ~Base() {} virtual int f(int n) { return n + counter; } };
struct Derived : Base { int f(int n) override { if (n < 0) throw std::out_of_range("n"); return *pointers[n % 3] + n; } };
int jump(int n) {
    switch (n) {
    case 0: return puts("zero"); case 1: return puts("one") + 1; case 2: return table[2];
    case 3: return table[5] * 3; case 4: return counter; case 5: return printf("%d", n); case 6: return 9;
    default: return -1;
    }
}
extern "C" int entry(int n) {
    std::vector<std::string> all;
    Base *b = new Derived;
    try { all.push_back(std::to_string(b->f(n))); } catch (const std::out_of_range &e) { return puts(e.what()); }
    delete b;
    return jump(n) + (int)all.size();
}
int main(int argc, char **) { return entry(argc) > 1000; }
"#;

struct Pair {
    original: Vec<u8>,
    copy: Separated,
}

impl Pair {
    fn build(dir: &Path, flags: &[&str]) -> Pair {
        let (source, output) = (dir.join("all.cpp"), dir.join("all"));
        std::fs::write(&source, SOURCE).expect("write a source");
        must(Command::new("g++").args(["-O2", "-g", "-o"]).arg(&output).arg(&source).args(flags));
        let original = std::fs::read(&output).expect("read what was built");
        let copy = separate(&original, PageSize::MB2, Options { least: 1 });
        let copy = copy.unwrap_or_else(|why| panic!("{flags:?}: {why}"));
        let pair = Pair { original, copy };
        let proof = pair.check(&pair.copy.bytes).unwrap_or_else(|flaw| panic!("{flags:?}: {flaw}"));
        println!("{flags:?}: {proof:?}");
        assert!(proof.addresses > 20 && proof.relocations > 5 && proof.functions > 5 && proof.debug > 5);
        pair
    }

    fn check(&self, copy: &[u8]) -> Result<hugelift_relink::separate::proof::Proof, Flaw> {
        check(&self.original, copy, &self.copy.distances)
    }

    /// Checks that the proof refuses the copy with `bytes` at `at`.
    fn breaks(&self, what: &str, at: usize, bytes: &[u8]) {
        let mut broken = self.copy.bytes.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        assert_ne!(broken, self.copy.bytes, "{what} at {at:#x}: nothing was broken");
        assert!(self.check(&broken).is_err(), "{what} at {at:#x} was broken, and nothing is found");
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.copy.bytes[at..at + 8].try_into().expect("8 bytes"))
    }
}

/// Offset and size in the file, and the name, of each section that has bytes.
fn sections(bytes: &[u8]) -> Vec<(String, usize, usize)> {
    let number =
        |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let (table, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let names = number(table + 64 * names + 0x18, 8);
    let section = |i: usize| {
        let at = table + 64 * i;
        let name = &bytes[names + number(at, 4)..];
        let name = String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).to_string();
        // SHT_NULL and SHT_NOBITS have none.
        let size = if matches!(number(at + 4, 4), 0 | 8) { 0 } else { number(at + 0x20, 8) };
        (name, number(at + 0x18, 8), size)
    };
    (0..count).map(section).collect()
}

/// Puts every address back to what it was, one at a time. Returns the sections that had one.
fn stale_addresses(pair: &Pair) -> BTreeSet<String> {
    let (old, new) = (sections(&pair.original), sections(&pair.copy.bytes));
    let mut seen = BTreeSet::new();
    for ((name, from, size), (_, to, _)) in old.into_iter().zip(new) {
        let places: Vec<usize> = (0..size / 8 * 8)
            .step_by(8)
            .filter(|i| pair.original[from + i..from + i + 8] != pair.copy.bytes[to + i..to + i + 8])
            .collect();
        // A few of each section: a file has hundreds.
        for i in places.iter().step_by((places.len() / 20).max(1)) {
            pair.breaks(&format!("an address of {name}"), to + i, &pair.original[from + i..from + i + 8]);
        }
        if !places.is_empty() {
            seen.insert(name);
        }
    }
    seen
}

/// Changes one bit at random places of every section.
fn random_bits(pair: &Pair) {
    let mut random = fastrand::Rng::with_seed(18);
    for (name, at, size) in sections(&pair.copy.bytes).into_iter().filter(|s| s.2 > 0) {
        for _ in 0..12 {
            let place = at + random.usize(..size);
            let bit = pair.copy.bytes[place] ^ 1 << random.u8(..8);
            pair.breaks(&format!("a bit of {name}"), place, &[bit]);
        }
    }
}

/// Changes each field of the header tables.
fn headers(pair: &Pair) {
    let other = |at: usize| (pair.word(at) ^ 1 << 12).to_le_bytes();
    for at in [0x10, 0x18, 0x20, 0x28, 0x30, 0x38] {
        pair.breaks("a field of the file header", at, &other(at));
    }
    let table = pair.word(0x20) as usize;
    let count = u16::from_le_bytes([pair.copy.bytes[0x38], pair.copy.bytes[0x39]]);
    for i in 0..usize::from(count) {
        let at = table + 56 * i;
        let (load, empty) = (pair.copy.bytes[at] == 1, pair.word(at + 0x20) == 0);
        for field in [0, 0x10, 0x18, 0x20, 0x28, 0x30] {
            pair.breaks(&format!("field {field:#x} of program header {i}"), at + field, &other(at + field));
        }
        if !empty {
            pair.breaks(&format!("the offset of program header {i}"), at + 8, &other(at + 8));
        }
        if load {
            for flag in [1, 2] {
                let flags = [pair.copy.bytes[at + 4] ^ flag];
                pair.breaks(&format!("the protection of program header {i}"), at + 4, &flags);
            }
        }
    }
    let table = pair.word(0x28) as usize;
    for (i, (_, _, size)) in sections(&pair.copy.bytes).into_iter().enumerate().skip(1) {
        let at = table + 64 * i;
        for field in [0, 8, 0x10, 0x20, 0x28, 0x30, 0x38] {
            pair.breaks(&format!("field {field:#x} of section {i}"), at + field, &other(at + field));
        }
        if size > 0 {
            pair.breaks(&format!("the offset of section {i}"), at + 0x18, &other(at + 0x18));
        }
    }
}

/// Changes what fills the copy up.
fn padding(pair: &Pair) {
    let table = pair.word(0x20) as usize;
    let mut headers = (0..12).map(|i| table + 56 * i);
    let segment = headers.find(|at| pair.copy.bytes[*at] == 1 && pair.copy.bytes[at + 4] & 1 != 0);
    let start = pair.word(segment.expect("a segment that is filled up") + 8) as usize;
    // Behind the new header tables, if it has them.
    for at in [start + 0x1000, start + 0x1801] {
        pair.breaks("a byte of the padding", at, &[pair.copy.bytes[at] ^ 0x5c]);
    }
}

fn every_way_to_break(flags: &[&str], holders: &[&str]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pair = Pair::build(dir.path(), flags);
    let seen = stale_addresses(&pair);
    for holder in holders {
        assert!(seen.contains(*holder), "{flags:?}: no address of {holder} moved: {seen:?}");
    }
    headers(&pair);
    padding(&pair);
    random_bits(&pair);
}

#[test]
fn every_broken_copy_is_found_where_constants_lie_with_the_code() {
    need!("g++");
    let Some(linkers) = linker_dir("ld.lld") else { skip!("needs ld.lld") };
    let found = format!("-B{}/", linkers.path().display());
    let holders = [".dynsym", ".symtab", ".dynamic", ".rela.dyn", ".rela.plt", ".got.plt"];
    every_way_to_break(&["-shared", "-fPIC", LAZY, "-fuse-ld=lld", &found, "-DFILL"], &holders);
}

const LAZY: &str = "-Wl,-z,lazy";

#[test]
fn every_broken_copy_is_found_where_the_code_moves() {
    need!("g++");
    let holders = [".dynsym", ".symtab", ".dynamic", ".rela.dyn", ".rela.plt", ".got.plt", ".debug_info"];
    every_way_to_break(&["-shared", "-fPIC", LAZY, "-Wl,-z,separate-code"], &holders);
    every_way_to_break(&["-pie", "-fPIE", LAZY, "-Wl,-z,separate-code"], &holders);
}

#[test]
fn every_broken_copy_is_found_where_everything_moves() {
    need!("g++");
    let holders = [".dynsym", ".symtab", ".dynamic", ".rela.dyn", ".rela.plt", ".got.plt"];
    every_way_to_break(&["-shared", "-fPIC", LAZY, "-Wl,-z,noseparate-code"], &holders);
}

#[test]
fn every_broken_copy_is_found_with_packed_relocations() {
    need!("g++");
    let known = Command::new("ld")
        .arg("--help")
        .output()
        .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("pack-relative-relocs"));
    if !known {
        skip!("needs a linker with -z pack-relative-relocs");
    }
    let flags = ["-shared", "-fPIC", "-Wl,-z,pack-relative-relocs", "-Wl,-z,separate-code"];
    every_way_to_break(&flags, &[".relr.dyn", ".dynsym", ".dynamic", ".init_array"]);
}

/// Found by the fuzz target separate: the table of frames leads before them.
#[test]
fn a_table_that_leads_before_the_frames_is_read_alike() {
    need!("g++");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pair = Pair::build(dir.path(), &["-shared", "-fPIC", "-Wl,-z,separate-code"]);
    let broken = [&pair.original, &pair.copy.bytes].map(|file| {
        let mut file = file.clone();
        let table = sections(&file).into_iter().find(|(name, ..)| name == ".eh_frame_hdr");
        let (_, at, size) = table.expect("a table of frames");
        // Pairs of a function and its frame, both relative to the table, follow a header of 12 bytes.
        file[at + 12..at + size].chunks_exact_mut(8).for_each(|entry| entry[4..].fill(0));
        file
    });
    // No frame is found by the table of either file, which is the same. Once this ended in a panic.
    let proof = check(&broken[0], &broken[1], &pair.copy.distances);
    assert!(proof.is_ok(), "{proof:?}");
    assert!(pair.check(&broken[1]).is_err());
}
