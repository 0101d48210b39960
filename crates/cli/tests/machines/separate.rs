// SPDX-License-Identifier: Apache-2.0
//! Suite: a program and the C library run from files whose code has huge pages of its own.

use crate::place::{alone, hugelift, victim};
use hugelift_core::elf::Headers;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Huge pages, and the base pages of the machines that have them. Each machine runs what is made for another one.
const SIZES: [(&str, u64, u64); 2] = [("2M", 2 << 20, 4 << 10), ("32M", 32 << 20, 16 << 10)];

fn command<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{}: {e}", program.display()))
}

/// Returns the C library that a program uses here.
fn c_library(program: &Path) -> PathBuf {
    let listed = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed.lines().find_map(|line| line.trim().strip_prefix("libc.so.6 => "));
    let path = line.and_then(|line| line.split_whitespace().next());
    fs::canonicalize(path.unwrap_or_else(|| panic!("no C library in {listed}"))).unwrap()
}

/// Separates a file, for huge pages of this size.
fn align(input: &Path, output: &Path, size: &str) -> Output {
    let args = ["align", "--separate", "--least", "1", "--page-size", size, "-o"].map(OsStr::new);
    command(&hugelift(), &[&args[..], &[output.as_os_str(), input.as_os_str()]].concat())
}

/// Separates a file. All its code lies in whole huge pages then, and nothing on stderr says that the copy was not loaded.
fn separate(input: &Path, output: &Path, (size, bytes, base): (&str, u64, u64)) {
    let done = align(input, output, size);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.is_empty(), "{}: {said}", input.display());
    let headers = Headers::parse(&fs::read(output).unwrap()).unwrap();
    let code = headers.segments.iter().find(|s| s.prot.exec).unwrap();
    assert_eq!((code.vaddr % bytes, code.offset % bytes), (0, 0), "{code:?}");
    // Files of AArch64 are linked for base pages of 64 kB, and are filled up.
    assert_eq!((code.vaddr + code.filesz).next_multiple_of(base) % bytes, 0, "{code:?}");
    // All of RELRO is protected, whatever the base page.
    let end = |headers: &Headers| headers.relro.map(|relro| (relro.vaddr + relro.size) % (64 << 10));
    let original = Headers::parse(&fs::read(input).unwrap()).unwrap();
    if cfg!(target_arch = "aarch64") {
        assert_eq!(end(&headers), end(&original), "{headers:?}");
    }
}

#[test]
fn a_program_and_the_c_library() {
    let _alone = alone();
    let program = victim("vm_separate.pie");
    let library = c_library(&program);
    let bare = command::<&str>(&program, &[]);
    let text = String::from_utf8_lossy(&bare.stdout);
    assert!(bare.status.success() && text.ends_with("1500 1\n0 wrong\n"), "{bare:?}");
    for size in SIZES {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        separate(&program, &at("program"), size);
        separate(&library, &at("c"), size);
        symlink(at("c"), at("libc.so.6")).unwrap();
        let moved = Command::new(at("program")).env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
        assert_eq!((moved.status, &moved.stdout, &moved.stderr), (bare.status, &bare.stdout, &bare.stderr));
    }
}
