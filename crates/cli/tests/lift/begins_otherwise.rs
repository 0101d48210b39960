// SPDX-License-Identifier: Apache-2.0
//! Programs that begin in an unusual way: no segment has the ELF header, the dynamic loader is the command, a shell becomes
//! the program.

use crate::common::build::must;
use crate::common::huge::smaps;
use crate::common::{Cmd, HUGELIFT, Held, fat};
use crate::skip;
use hugelift_core::smaps::Usage;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn said(words: &[&str]) -> String {
    let out = Command::new(HUGELIFT).args(words).stdin(Stdio::null()).output().expect("start hugelift");
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn huge(pid: u32) -> u64 {
    smaps(pid).iter().map(Usage::huge).sum()
}

/// Makes a static program with 6 MB of code that waits for its stdin.
fn without_header(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("source.c"), dir.join("program"));
    let text = "__asm__(\".fill 6400000, 1, 0x90\");\nlong one = 1;\n\
                static long read1(char *c) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(0L), \"D\"(0L), \
                \"S\"(c), \"d\"(1L) : \"rcx\", \"r11\", \"memory\"); return r; }\n\
                void _start(void) { char c; while (read1(&c) > 0) ; \
                __asm__ volatile(\"syscall\" : : \"a\"(231L), \"D\"(0L)); }\n";
    std::fs::write(&source, text).expect("write the source");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims/no_header.lds");
    must(
        Command::new("cc")
            .args(["-O1", "-static", "-nostdlib", "-no-pie", "-fno-pie", "-fno-stack-protector"])
            .args(["-Wl,--build-id=none", "-o"])
            .arg(&program)
            .arg(&source)
            .arg(format!("-Wl,-T,{}", script.display())),
    );
    program
}

#[test]
fn issue_29_b10_no_segment_has_the_elf_header() {
    if cfg!(not(target_arch = "x86_64")) {
        skip!("the program makes system calls of x86-64");
    }
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = without_header(dir.path());
    for options in [&[][..], &["--span", "outer"]] {
        let options = [&["--backing", "thp"], options].concat();
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        assert!(huge(held.pid()) >= 6 << 20, "{options:?}");
        let shown = said(&["inspect", &held.pid().to_string()]);
        assert!(shown.contains("huge 6 MB") || shown.contains("huge 6.1 MB"), "{options:?}: {shown}");
        held.finish();
    }
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let id = held.pid().to_string();
    let told = said(&["attach", "--whole", "--backing", "thp", &id]);
    assert!(huge(held.pid()) >= 6 << 20, "{told}");
    let told = said(&["restore", &id]);
    assert_eq!(huge(held.pid()), 0, "{told}");
    held.finish();
}

#[test]
fn issue_29_b10_the_loader_as_the_command() {
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"].into_iter();
    let Some(loader) = loader.map(Path::new).find(|path| path.exists()) else {
        skip!("needs the loader of glibc");
    };
    let program = fat("child").build();
    let cmd = Cmd::new([loader, &program]);
    let lifted = cmd.lifted(&["--backing", "thp"]);
    let lines = lifted.own_lines();
    assert!(
        lines.len() == 1 && lines[0].contains("without --eager, the program is lifted while it runs"),
        "{lifted:?}"
    );
    assert_eq!(cmd.lazy().lifted(&["--backing", "thp"]).own_lines(), Vec::<&str>::new());
}

#[test]
fn issue_29_b7_a_shell_that_becomes_the_program() {
    let program = fat("child").build();
    let cmd = Cmd::new(["sh", "-c", &format!("true; exec {}", program.display())]);
    let says = |options: &[&str]| {
        let lifted = cmd.lifted(&[&["--backing", "thp"], options].concat());
        lifted.own_lines().iter().filter(|line| line.contains("'exec hugelift run --eager -- PROG'")).count()
    };
    // Without -v the shell's stderr is its own.
    assert_eq!([says(&["-v"]), says(&[]), says(&["-v", "--children", "lift"])], [1, 0, 0]);
    // What the line says works.
    let line = format!("true; exec {HUGELIFT} run --eager --backing thp -- {}", program.display());
    let followed = Cmd::new(["sh", "-c", &line]).bare();
    assert!(followed.stdout.contains(" huge,") && followed.own_lines().is_empty(), "{followed:?}");
    let children = cmd.lifted(&["--backing", "thp", "--children", "lift"]);
    assert!(children.stdout.contains(" huge,"), "{children:?}");
}
