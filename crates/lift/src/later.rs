// SPDX-License-Identifier: Apache-2.0
//! Programs that become or load what they are started for after their start, where `--eager` lifts nothing.

use crate::options::Verbosity;
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::command::start_words;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::proc::procfs::Process;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

const LOADER: &str = "it is the dynamic loader, which loads its program only after its own start, so --eager does not lift \
                      that program; without --eager, the program is lifted while it runs";
const SHELL: &str = "--eager does not lift what a shell becomes by 'exec PROG': write 'exec hugelift run --eager -- PROG' \
                     there, or leave out --eager, so that it is lifted while it runs";

/// Returns what to say of a program at its start with `--eager`, if that leaves out what matters of it. Shells that become
/// another program are usual, and mostly not what is to be lifted: that is said to those who want to know more.
pub(crate) fn left_out(
    pid: u32,
    before: &Snapshot,
    lifts_children: bool,
) -> Option<(Verbosity, &'static str)> {
    if is_loader(before) {
        return Some((Verbosity::Problems, LOADER));
    }
    let leaves_out = !lifts_children && becomes_another(&start_words(Process::new(pid)));
    leaves_out.then_some((Verbosity::Summary, SHELL))
}

/// Returns whether the program is a dynamic loader: a shared object that needs none. A static program that may be loaded
/// anywhere needs none either, but is no shared object.
fn is_loader(before: &Snapshot) -> bool {
    let program = before.objects.iter().find(|object| object.executable);
    program
        .filter(|object| object.headers.interp.is_none())
        .is_some_and(|object| ElfFile::open(&object.path).is_ok_and(|file| file.dynamic().soname.is_some()))
}

/// Returns whether the command is `sh -c "... exec PROG"`.
fn becomes_another(words: &[OsString]) -> bool {
    let mut options = words.iter().skip(1).take_while(|word| word.as_bytes().starts_with(b"-"));
    let takes_line = options.any(|word| word.as_bytes().ends_with(b"c"));
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || b";&|(){}".contains(byte);
    let mut lines = words.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-"));
    takes_line && lines.next().is_some_and(|line| line.as_bytes().split(is_blank).any(|word| word == b"exec"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_29_b7_a_shell_that_becomes_another_program() {
        let is = |words: &[&str]| becomes_another(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(is(&["/bin/sh", "-c", "cd /; exec mariadbd"]));
        assert!(is(&["bash", "-e", "-c", "exec $PROG"]) && is(&["sh", "-ec", "a&&exec b"]));
        assert!(!is(&["sh", "-c", "executor"]) && !is(&["sh", "exec"]) && !is(&["find", "/", "-exec"]));
    }
}
