// SPDX-License-Identifier: Apache-2.0
//! Re-lays the output of each linker in each form.

use crate::align::cache::{huge, still_huge};
use crate::align::relaid::relaid;
use crate::common::build::must;
use crate::common::huge::smaps;
use crate::common::run::PATIENCE;
use crate::common::{Cmd, End, Held, Victim, fat, find, plain};
use crate::{need, skip};
use hugelift_core::addr::PageSize;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Makes a directory in which cc finds the linker by the name that cc looks for.
pub fn linker_dir(name: &str) -> Option<tempfile::TempDir> {
    let newest = || (11..40).rev().find_map(|n| find(&format!("{name}-{n}")));
    let linker = find(name).or_else(newest)?;
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink(linker, dir.path().join(name)).expect("symlink");
    Some(dir)
}

/// Checks that a re-laid copy of `program`, in another directory, runs as the program does.
fn runs_the_same(program: &Path, page: PageSize) -> crate::align::relaid::Relaid {
    let copy = relaid(program, page).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let bare = Cmd::new([program]).bare();
    assert_eq!((bare.end, bare.stderr.as_str()), (End::Code(0), ""), "{}", program.display());
    let again = Cmd::new([&copy.path]).bare();
    assert_eq!(again, bare, "{}", program.display());
    copy
}

fn every_form(linker: &str, flag: &str) {
    let Some(dir) = linker_dir(&format!("ld.{linker}")) else { skip!("needs ld.{linker}") };
    let found = format!("-B{}/", dir.path().display());
    let with = |flags: &[&str]| {
        // The victim is built anew for each linker: what is built does not show where the linker was found.
        [&[flag, found.as_str()][..], flags].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let forms: &[&[&str]] = &[
        &[],
        &["-no-pie"],
        &["-static"],
        &["-static-pie"],
        &["-Wl,-z,noseparate-code"],
        &["-Wl,-z,noseparate-code", "-no-pie"],
        &["-Wl,-z,max-page-size=0x10000"],
        &["-s"],
    ];
    let mut built = 0;
    for form in forms {
        let flags = with(form);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let build = |victim: Victim| victim.flags(&flags).try_build();
        let program = match build(fat("sums")) {
            Ok(program) => program,
            // gold cannot make a static PIE; gold and mold do not know noseparate-code.
            Err(why) if why.contains("unknown") => {
                println!("{linker} {form:?}: not built: {why}");
                continue;
            }
            Err(why) => panic!("{why}"),
        };
        runs_the_same(&program, PageSize::MB2);
        // For smaller pages a small segment is moved as well.
        runs_the_same(&program, PageSize::new(64 << 10).expect("a size"));
        built += 1;
        let _ = std::fs::remove_file(&program);
    }
    assert!(built >= 5, "{linker}: only {built} forms built");
    let flags = with(&["-DPART=1"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let library = fat("part").library().flags(&flags).build();
    a_library_is_found_and_right(&library);
    let _ = std::fs::remove_file(&library);
}

fn a_library_is_found_and_right(library: &Path) {
    let other = |n: u32| fat("part").size(4096).library().flags(&[&format!("-DPART={n}")]).build();
    let linked = plain("parts").with(library.to_owned());
    let program = (2..=5).fold(linked, |victim, n| victim.with(other(n))).build();
    let copy = relaid(library, PageSize::MB2).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let held = Held::start(&Cmd::new([&program]).env("LD_PRELOAD", &copy.path), None, &program);
    let maps = held.proc("maps");
    let mapped = |path: &Path| maps.contains(&*path.to_string_lossy());
    assert!(mapped(&copy.path) && !mapped(library), "{maps}");
    assert_eq!(held.finish().stdout, "wrong 0 0 0 0 0\nready\n");
    let _ = std::fs::remove_file(&program);
}

/// The kernel aligns the base of a PIE program to its largest p_align, and then maps the huge pages of the
/// page cache without help.
#[test]
fn a_program_at_a_random_base_gets_its_huge_pages() {
    let program = fat("hold").flags(&["-Wl,-z,max-page-size=0x1000"]).build();
    let copy = relaid(&program, PageSize::MB2).unwrap_or_else(|e| panic!("{e}"));
    let (wanted, got) = copy.cached;
    if got == 0 {
        skip!("this file system has no huge pages in the page cache");
    }
    assert_eq!(got, wanted);
    let end = Instant::now() + PATIENCE;
    loop {
        let held = Held::start(&Cmd::new([&copy.path]), None, &copy.path);
        let usage = smaps(held.pid());
        let mapped: u64 = usage.iter().filter(|u| u.mapping.path == copy.path).map(|u| u.file_huge).sum();
        let cached = still_huge(&copy.path).1;
        assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
        if mapped == wanted {
            break;
        }
        // The kernel splits huge pages of the page cache when it compacts memory, for example for the pool of another test.
        assert!(cached < wanted, "{cached} bytes are huge in the page cache, {mapped} in the process");
        assert!(Instant::now() < end, "{cached} of {wanted} bytes stay huge in the page cache");
        huge(&copy.path);
    }
}

#[test]
fn bfd() {
    every_form("bfd", "-fuse-ld=bfd");
}

#[test]
fn gold() {
    every_form("gold", "-fuse-ld=gold");
}

#[test]
fn lld() {
    every_form("lld", "-fuse-ld=lld");
}

#[test]
fn mold() {
    every_form("mold", "-fuse-ld=mold");
}

#[test]
fn go_and_rustc() {
    need!("go", "rustc");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.go"), "package main\nfunc main() { print(6*7) }\n").expect("write");
    std::fs::write(at("a.rs"), "fn main() { println!(\"{}\", 6 * 7) }").expect("write");
    let go = |out: &str, args: &[&str]| {
        must(Command::new("go").arg("build").args(args).arg("-o").arg(at(out)).arg(at("a.go")));
    };
    go("go", &[]);
    go("go-pie", &["-buildmode=pie"]);
    let rust = |out: &str, args: &[&str]| {
        must(Command::new("rustc").args(args).arg("-o").arg(at(out)).arg(at("a.rs")));
    };
    rust("rust", &[]);
    rust("rust-static", &["-Ctarget-feature=+crt-static"]);
    for program in ["go", "go-pie", "rust", "rust-static"] {
        let copy = relaid(&at(program), PageSize::new(64 << 10).expect("a size"));
        let copy = copy.unwrap_or_else(|e| panic!("{program}: {e}"));
        let bare = Cmd::new([at(program)]).bare();
        assert!(format!("{}{}", bare.stdout, bare.stderr).contains("42"), "{bare:?}");
        assert_eq!(Cmd::new([&copy.path]).bare(), bare, "{program}");
    }
}
