// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate` compares both files as the loader loads them, or says why it does not.

use crate::align::relaid::align;
use crate::common::{Cmd, End, HUGELIFT, build::must, fat, plain};
use crate::{need, need_root};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn said(out: &Output) -> (Option<i32>, String) {
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

/// The loader runs as nobody, who cannot read the original. Its bytes are proven all the same.
#[test]
fn a_file_that_only_root_reads_is_not_loaded_and_this_is_said() {
    need_root!();
    let dir = folder();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    crate::common::cache::copy(fat("sums").build(), &input);
    std::fs::set_permissions(&input, Permissions::from_mode(0o700)).expect("chmod");
    let (status, text) = said(&align(&input, &output, &["--separate"]));
    assert_eq!((status, text.lines().count()), (Some(0), 1), "{text}");
    assert!(
        text.contains("was not compared: the user nobody, who is to load it, cannot read the file"),
        "{text}"
    );
    assert_eq!(std::fs::metadata(&output).expect("stat").mode() & 0o7777, 0o700);
    assert_eq!(Cmd::new([&output]).bare().end, End::Code(0));
}

/// Nobody cannot reach the folder either, but need not: the files are open.
#[test]
fn the_folder_may_be_closed_to_others() {
    let dir = folder();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).expect("mkdir");
    let (input, output) = (closed.join("in"), closed.join("out"));
    crate::common::cache::copy(fat("sums").build(), &input);
    std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("chmod");
    assert_eq!(said(&align(&input, &output, &["--separate"])), (Some(0), String::new()));
}

/// A program with 300 MB of zeros is compared, and they are not read.
#[test]
fn memory_that_nothing_has_touched_is_not_read() {
    need!("cc");
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let source = "volatile char zeros[300UL << 20]; volatile char *const end = zeros + sizeof zeros - 1;
        __asm__(\".text; .fill 700000, 1, 0x90\");
        int main(int argc, char **argv) { zeros[argc] = 1; return zeros[argc] - 1 + *end; }";
    std::fs::write(at("zeros.c"), source).expect("write");
    must(Command::new("cc").args(["-O1", "-fPIE", "-pie", "-o"]).arg(at("zeros")).arg(at("zeros.c")));
    let cmd = Cmd::new([HUGELIFT, "align", "--separate", "--least", "1"]);
    let outcome = cmd.arg(at("zeros")).arg("-o").arg(at("out")).under([plain("peak").build()]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let peak: u64 = outcome.stdout.lines().last().and_then(|kb| kb.parse().ok()).expect("the peak");
    assert!(peak < 200 << 10, "{peak} kB were in memory");
    assert_eq!(Cmd::new([&at("out")]).bare().end, End::Code(0));
}

/// Runs the command where this system call is refused, as containers do.
fn without(call: libc::c_long, input: &Path, output: &Path) -> Output {
    let op = |code: u16, k: u32, jt: u8, jf: u8| libc::sock_filter { code, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    // Loads the number, compares it, and returns.
    let number = u32::try_from(call).expect("a number");
    let filter = [
        op(0x20, 0, 0, 0),
        op(0x15, number, 0, 1),
        op(0x06, refuse, 0, 0),
        op(0x06, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
        // SAFETY: prctl(2) reads the filter, which lives in this closure.
        let rc = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
        };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let mut command = Command::new(HUGELIFT);
    command.args(["align", "--separate"]).arg(input).arg("-o").arg(output);
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
    command.output().expect("hugelift")
}

#[test]
fn what_a_container_refuses_is_named_or_not_needed() {
    let (dir, input): (_, PathBuf) = (folder(), fat("sums").build());
    let output = dir.path().join("out");
    let out = without(libc::SYS_personality, &input, &output);
    assert_eq!(said(&out), (Some(0), String::new()), "random addresses are compared");
    for (call, name) in [
        (libc::SYS_ptrace, "ptrace(2) with PTRACE_TRACEME: Operation not permitted"),
        (libc::SYS_close_range, "close_range(2): Operation not permitted"),
    ] {
        let (status, text) = said(&without(call, &input, &output));
        assert_eq!((status, text.lines().count()), (Some(0), 1), "{text}");
        assert!(text.contains("the loaded copy was not compared") && text.contains(name), "{text}");
    }
}
