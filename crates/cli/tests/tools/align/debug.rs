// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate --debug`: debug information in a file of its own. gdb finds lines in the separated
//! program by it, and readelf and addr2line, which shift nothing, see the addresses of the copy.

use crate::align::relaid::align;
use crate::align::separate::{ALL, folder};
use crate::common::build::must;
use crate::common::{find, fits};
use crate::need;
use hugelift_core::addr::PageSize;
use hugelift_relink::separate::proof::{Flaw, Versions, check_debug};
use hugelift_relink::separate::{Options, separate, separate_debug};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `inner` is called at a known line.
const C: &str = r#"#include <stdio.h>
static int table[9];
__attribute__((noinline)) static int inner(int n) {
    table[n % 9] += n;
    return table[n % 4];
}
__attribute__((noinline)) static int outer(int n) { int r = inner(n) + 1; __asm__("" : "+r"(r)); return r; }
int main(int argc, char **argv) { printf("%d\n", outer(argc)); return 0; }
"#;

const CPP: &str = r#"#include <cstdio>
#include <string>
static volatile int sum; struct Base { virtual ~Base() {} virtual int inner(int n) = 0; };
struct Made : Base { __attribute__((noinline)) int inner(int n) override {
    sum = n + 1;
    return (int)std::string(n, 'x').size();
} };
__attribute__((noinline)) static int outer(Base *b, int n) { int r = b->inner(n) + 1; __asm__("" : "+r"(r)); return r; }
int main(int argc, char **) { Made made; std::printf("%d\n", outer(&made, argc)); }
"#;

/// A program, stripped, and its debug information.
pub struct Built {
    pub program: PathBuf,
    pub debug: PathBuf,
    /// Neither stripped nor linked to the debug information.
    pub whole: PathBuf,
}

/// Builds a program in `dir`. `source` is a name and the text.
pub fn built(dir: &Path, (name, text): (&str, &str), options: &[&str]) -> Built {
    let source = dir.join(name);
    let [whole, debug, program] = ["whole", "program.debug", "program"].map(|name| dir.join(name));
    std::fs::write(&source, text).expect("write a source");
    let compiler = if name.ends_with(".c") { "gcc" } else { "g++" };
    must(Command::new(compiler).args(["-g", "-O1"]).args(options).arg("-o").arg(&whole).arg(&source));
    must(Command::new("objcopy").arg("--only-keep-debug").arg(&whole).arg(&debug));
    let mut strip = Command::new("objcopy");
    let link = format!("--add-gnu-debuglink={}", debug.display());
    must(strip.args(["--strip-all", &link]).arg(&whole).arg(&program));
    Built { program, debug, whole }
}

/// Returns what gdb says where the program has stopped at a line, without addresses.
fn stopped(program: &Path, line: &str, debug_folder: &Path) -> Vec<String> {
    let folder = format!("set debug-file-directory {}", debug_folder.display());
    let mut gdb = Command::new(find("gdb").expect("needed"));
    gdb.args(["-nx", "-batch", "-iex", &folder, "-iex", "set debuginfod enabled off"]);
    gdb.args(["-ex", &format!("break {line}"), "-ex", "run", "-ex", "bt", "-ex", "info locals"]).arg(program);
    let out = gdb.output().expect("gdb starts");
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(!text.contains("CRC mismatch"), "{text}");
    let shown: Vec<String> = text
        .lines()
        .skip_while(|line| !line.contains("Breakpoint 1, "))
        .map(|line| line.split_whitespace().filter(|word| !word.contains("0x")).collect::<Vec<_>>().join(" "))
        .collect();
    assert!(!shown.is_empty(), "gdb does not stop in {}:\n{text}", program.display());
    shown
}

/// Returns the addresses of the lines that readelf decodes.
fn lines(debug: &Path) -> Vec<u64> {
    let text = must(Command::new("readelf").arg("--debug-dump=decodedline").arg(debug));
    let numbers = text.lines().filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("0x"));
    numbers.filter_map(|number| u64::from_str_radix(number, 16).ok()).collect()
}

/// Returns the addresses at which functions begin in the debug information.
fn functions(debug: &Path) -> Vec<u64> {
    let text = must(Command::new("readelf").arg("--debug-dump=info").arg(debug));
    let lows = text.lines().filter(|line| line.contains("DW_AT_low_pc"));
    let numbers = lows.filter_map(|line| line.rsplit("0x").next()?.split_whitespace().next());
    // A unit whose functions do not lie together has 0.
    numbers.filter_map(|number| u64::from_str_radix(number, 16).ok()).filter(|&at| at != 0).collect()
}

/// Returns how far the code moved, from what the command said.
fn distance(said: &serde_json::Value, address: u64) -> u64 {
    let number = |part: &serde_json::Value, name: &str| part[name].as_u64().expect("a number");
    let parts = said["moved"].as_array().expect("parts");
    let part = parts.iter().find(|part| (number(part, "start")..=number(part, "end")).contains(&address));
    number(part.expect("a part"), "by")
}

#[test]
fn gdb_finds_lines_by_the_new_debug_information() {
    need!("gcc", "g++", "gdb", "objcopy", "readelf", "addr2line");
    let programs: &[(&str, &str, &str)] = &[("a.c", C, "a.c:5"), ("a.cc", CPP, "a.cc:5")];
    let packings = ["none", "zlib", "zlib-gnu"];
    for (&(name, text, line), packing) in programs.iter().flat_map(|one| packings.map(|p| (one, p))) {
        for layout in ["separate-code", "noseparate-code"] {
            let (dir, copies, none) = (folder(), folder(), folder());
            let made = built(dir.path(), (name, text), &[&format!("-Wl,-z,{layout}")]);
            if packing != "none" {
                let pack = format!("--compress-debug-sections={packing}");
                must(Command::new("objcopy").arg(pack).arg(&made.debug));
                let link = format!("--add-gnu-debuglink={}", made.debug.display());
                let mut again = Command::new("objcopy");
                must(again.args(["-R", ".gnu_debuglink"]).arg(&made.program));
                must(Command::new("objcopy").arg(link).arg(&made.program));
            }
            let copy = copies.path().join("copy");
            let debug = made.debug.to_string_lossy();
            let out = align(&made.program, &copy, &[&ALL[..], &["--debug", &debug, "--json"]].concat());
            assert!(out.status.success(), "{name} {packing} {layout}: {out:?}");
            let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
            fits("align-separate", &said);
            let new = copies.path().join("copy.debug");
            assert_eq!(said["debug"]["output"].as_str(), new.to_str(), "{said}");
            assert_eq!((&said["debug"]["linked"], &said["debug"]["input"]), (&true.into(), &(*debug).into()));
            let before = stopped(&made.program, line, none.path());
            let after = stopped(&copy, line, none.path());
            assert_eq!(before, after, "{name} {packing} {layout}");
            assert!(after.iter().any(|line| line.contains(" in outer ")) && after.len() >= 4, "{after:?}");
            for (old, new) in [(lines(&made.debug), lines(&new)), (functions(&made.debug), functions(&new))] {
                assert!(old.len() >= 3 && old.len() == new.len(), "{name} {packing}: {old:x?} {new:x?}");
                for (old, new) in old.iter().zip(&new) {
                    assert_eq!(*new, old + distance(&said, *old), "{name} {packing} {layout}: {old:#x}");
                }
            }
            // This tool shifts nothing.
            let at = *lines(&new).first().expect("a line");
            let place = must(Command::new("addr2line").arg("-e").arg(&new).arg(format!("{at:#x}")));
            assert!(place.contains(name), "{place}");
        }
    }
}

#[test]
fn folders_of_debug_information_are_searched_and_filled() {
    need!("gcc", "gdb", "objcopy", "readelf");
    let (dir, copies) = (folder(), folder());
    let made = built(dir.path(), ("a.c", C), &[]);
    must(Command::new("objcopy").args(["-R", ".gnu_debuglink"]).arg(&made.program));
    let notes = must(Command::new("readelf").arg("-n").arg(&made.program));
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build-id");
    let place = format!(".build-id/{}/{}.debug", &id[..2], &id[2..]);
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    std::fs::create_dir(&new).expect("a folder");
    let copy = copies.path().join("copy");
    let [from, to] = [&old, &new].map(|path| path.to_string_lossy().into_owned());
    let words = [&ALL[..], &["--debug", &from, "--debug-output", &to]].concat();
    // Nothing is there yet.
    std::fs::create_dir(&old).expect("a folder");
    let out = align(&made.program, &copy, &words);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(125) && said.contains(&place) && !copy.exists(), "{out:?}");
    std::fs::create_dir_all(old.join(&place).parent().expect("a folder")).expect("folders");
    std::fs::rename(&made.debug, old.join(&place)).expect("rename");
    let out = align(&made.program, &copy, &[&words[..], &["--dry-run"]].concat());
    assert!(out.status.success() && !new.join(".build-id").exists() && !copy.exists(), "{out:?}");
    let out = align(&made.program, &copy, &words);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("does not name"), "{out:?}");
    assert_eq!(stopped(&made.program, "a.c:5", &old), stopped(&copy, "a.c:5", &new));
    assert_eq!(
        lines(&new.join(&place)).len(),
        lines(&old.join(&place)).iter().zip(lines(&new.join(&place))).filter(|(a, b)| **a != *b).count()
    );
}

#[test]
fn debug_information_of_another_program_is_refused() {
    need!("gcc", "objcopy");
    let (dir, other, copies) = (folder(), folder(), folder());
    let made = built(dir.path(), ("a.c", C), &[]);
    let changed = C.replace("% 4", "% 3 + table[n % 7] * table[1]");
    let unrelated = built(other.path(), ("a.c", &changed), &[]);
    let unnamed = dir.path().join("unnamed");
    must(Command::new("objcopy").args(["-R", ".note.gnu.build-id"]).arg(&unrelated.debug).arg(&unnamed));
    let cut = dir.path().join("cut");
    let bytes = std::fs::read(&made.debug).expect("read");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("write");
    let copy = copies.path().join("copy");
    let source = dir.path().join("a.c");
    for (debug, words) in [
        (&unrelated.debug, "its build-id is"),
        (&unnamed, "its section "),
        (&made.whole, "objcopy --only-keep-debug"),
        (&made.program, "objcopy --only-keep-debug"),
        (&cut, "cut off"),
        (&source, "not an ELF file"),
        (&dir.path().join("none"), "cannot read"),
    ] {
        let name = debug.to_string_lossy();
        let out = align(&made.program, &copy, &[&ALL[..], &["--debug", &name]].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{name}: {said}");
        assert!(said.contains(words), "{name}: {said}");
        assert_eq!(std::fs::read_dir(copies.path()).expect("a folder").count(), 0, "{name}");
    }
    let debug = made.debug.to_string_lossy();
    let output = copy.to_string_lossy();
    for (to, words) in [(&debug, "the file of --debug itself"), (&output, "both the copy and its debug")] {
        let out =
            align(&made.program, &copy, &[&ALL[..], &["--debug", &debug, "--debug-output", to]].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(125) && said.contains(words), "{said}");
    }
    assert!(std::fs::read(&made.debug).expect("read") == bytes);
    let out = align(&made.program, &copy, &["--debug", &debug]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("--separate"), "{out:?}");
}

/// Puts each address in the new debug information back to what it was, one at a time, and changes single bits. The
/// proof must find each.
#[test]
fn every_broken_address_of_debug_information_is_found() {
    need!("g++", "objcopy");
    for layout in ["-Wl,-z,separate-code", "-Wl,-z,noseparate-code"] {
        let dir = folder();
        let made = built(dir.path(), ("a.cc", CPP), &[layout]);
        let [program, debug] = [&made.program, &made.debug].map(|path| std::fs::read(path).expect("read"));
        let copy = separate(&program, PageSize::MB2, Options { least: 1 }).expect("nothing wrong with it");
        let new = separate_debug(&debug, &program, &copy).expect("nothing wrong with it");
        let check = |new: &[u8]| {
            let programs = Versions { original: &program, copy: &copy.bytes };
            check_debug(programs, Versions { original: &debug, copy: new }, &copy.distances)
        };
        let proof = check(&new).unwrap_or_else(|flaw: Flaw| panic!("{layout}: {flaw}"));
        assert!(proof.debug > 5 && proof.symbols > 20, "{proof:?}");
        assert_eq!(debug.len(), new.len(), "nothing was compressed");
        let moved: Vec<usize> = (0..debug.len()).filter(|&i| debug[i] != new[i]).collect();
        assert!(moved.len() > 100, "{}", moved.len());
        for at in moved.iter().step_by(moved.len() / 100) {
            let mut broken = new.clone();
            broken[*at] = debug[*at];
            assert!(
                check(&broken).is_err(),
                "{layout}: the byte at {at:#x} is as before, and nothing is found"
            );
        }
        let mut random = fastrand::Rng::with_seed(18);
        for _ in 0..300 {
            let at = random.usize(..new.len());
            // Zeros may be padding between sections.
            if new[at] == 0 {
                continue;
            }
            let mut broken = new.clone();
            broken[at] ^= 1 << random.u8(..8);
            assert!(check(&broken).is_err(), "{layout}: a bit at {at:#x} changed, and nothing is found");
        }
    }
}
