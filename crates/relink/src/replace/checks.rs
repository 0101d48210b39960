// SPDX-License-Identifier: Apache-2.0
//! Checks that a copy does what the file does, by the loader and by a command of the user's.

use crate::loader::{NOBODY, SHELL, loader_of, trusted};
use crate::relay::Original;
use hugelift_core::printable::{Escape, printable_lines, text_to_parse};
use hugelift_linux::command::{drain, end_by, never_wait, wait_for};
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::held_signals::HeldSignals;
use hugelift_linux::inherited_signals;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How long to wait for `--verify` of a loader, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two checks whether the user's command has ended or a signal has come.
const CHECK: Duration = Duration::from_millis(5);

/// Lets the loader map each of the two files and run nothing (`--verify`, ld.so(8)): it must exit alike for
/// both. A static program has no loader.
///
/// The file names its loader, and the author of the file chose the name. So a loader runs only if no user
/// but root and the caller can change it, and it has a loader's name. A file may also be made so that the
/// loader which maps it runs its code (glibc does not count that as a defect of ld.so). So the loader runs
/// with the rights of the file's owner, who gains nothing by that, and with none that a program could give
/// it.
pub(super) fn loader(file: &ElfFile, original: &Original, copy: &File) -> Result<(), String> {
    let Some(named) = loader_of(file) else { return Ok(()) };
    let loader = trusted(&named).map_err(|why| refusal(&named, &why, &original.meta))?;
    let verified = |file: &File| verify(&loader, file, runner(&original.meta));
    let (before, after) = (verified(original.file())?, verified(copy)?);
    if before == after {
        return Ok(());
    }
    Err(format!("{} --verify ends with {after} instead of {before}", loader.escaped()))
}

fn refusal(named: &Path, why: &str, file: &Metadata) -> String {
    let mut message = format!("its loader {} is not run: {why}", named.escaped());
    if nix::unistd::geteuid().is_root() && file.uid() != 0 {
        message += &format!(
            "; without root's rights: setpriv --reuid={} --clear-groups hugelift prime --replace",
            file.uid()
        );
    }
    message
}

/// Returns the user as whom the loader checks the file; `None` for the caller.
fn runner(file: &Metadata) -> Option<u32> {
    let others_write = file.mode() & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    match file.uid() {
        0 if others_write => Some(NOBODY),
        owner => Some(owner),
    }
    .filter(|&uid| uid != nix::unistd::geteuid().as_raw())
}

/// Runs `loader --verify` on the open file; returns its exit status.
fn verify(loader: &Path, file: &File, runner: Option<u32>) -> Result<ExitStatus, String> {
    let fd = file.as_raw_fd();
    let mut command = Command::new(loader);
    command.arg("--verify").arg(format!("/proc/self/fd/{fd}"));
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(uid) = runner {
        // With `uid`, Rust also drops the supplementary groups.
        command.gid(NOBODY).uid(uid);
    }
    // SAFETY: between fork and exec the closure makes system calls, and allocates nothing.
    unsafe { command.pre_exec(move || confine(fd)) };
    let failed = |e: io::Error| format!("cannot run {}: {e}", loader.escaped());
    let mut child = command.spawn().map_err(failed)?;
    let status = wait_for(&mut child, PATIENCE).map_err(failed)?;
    status.ok_or_else(|| format!("{} --verify does not end", loader.escaped()))
}

/// Takes the terminal and all further rights from the process, and leaves it the open file.
fn confine(fd: RawFd) -> io::Result<()> {
    // A process in our session could type into our terminal (TIOCSTI).
    nix::unistd::setsid()?;
    nix::sys::prctl::set_no_new_privs()?;
    // SAFETY: fcntl(2) with numbers alone, in a process of its own.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Runs the user's shell command with each of the two for `{}`: it must exit with the same status and write
/// the same. It runs with the caller's rights, whatever it does with the files. A held signal ends it.
pub(super) fn attempt(
    command: &str,
    file: &Path,
    copy: &Path,
    held: Option<&HeldSignals>,
) -> Result<(), String> {
    let run = |path: &Path| -> Result<Output, String> {
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(with_name(command, path)).stdin(Stdio::null());
        let ended = output(&mut shell, held).map_err(|e| format!("cannot run '{command}': {e}"))?;
        ended.map_err(|signal| format!("{signal} has ended '{command}'"))
    };
    let (before, after) = (run(file)?, run(copy)?);
    if before.status != after.status {
        return Err(format!("'{command}' ends with {} instead of {}", after.status, before.status));
    }
    // A program may print its own name.
    let named = |bytes: &[u8], path: &Path| {
        let name = |path: &Path| path.file_name().unwrap_or_default().escaped().to_string();
        printable_lines(&text_to_parse(bytes)).replace(&name(path), &name(file))
    };
    for (what, a, b) in [("stdout", &before.stdout, &after.stdout), ("stderr", &before.stderr, &after.stderr)]
    {
        let (a, b) = (named(a, file), named(b, copy));
        if a != b {
            let differs = a.lines().zip(b.lines()).find(|(a, b)| a != b);
            let (a, b) = differs.unwrap_or(("…", "output of another length"));
            return Err(format!("'{command}' writes another {what}: \"{b}\" instead of \"{a}\""));
        }
    }
    Ok(())
}

/// Runs a command. Returns how it ends and what it has written by then, or the held signal that has ended it. It does not wait for
/// the end of its output, which a process that it leaves behind may hold open.
fn output(command: &mut Command, held: Option<&HeldSignals>) -> io::Result<Result<Output, Signal>> {
    inherited_signals::pass_on(command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    out.as_ref().map(never_wait).transpose()?;
    err.as_ref().map(never_wait).transpose()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        let ended = child.try_wait()?;
        out.as_ref().map(|pipe| drain(pipe, |bytes| stdout.extend_from_slice(bytes)));
        err.as_ref().map(|pipe| drain(pipe, |bytes| stderr.extend_from_slice(bytes)));
        if let Some(status) = ended {
            return Ok(Ok(Output { status, stdout, stderr }));
        }
        if let Some(signal) = held.and_then(HeldSignals::came) {
            end_by(&mut child, signal)?;
            return Ok(Err(signal));
        }
        sleep(CHECK);
    }
}

/// Returns the command with the file's name, in quotes, for each `{}`.
fn with_name(command: &str, path: &Path) -> OsString {
    // A name may hold any byte but NUL.
    let mut quoted = vec![b'\''];
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'\'' => quoted.extend(br"'\''"),
            other => quoted.push(other),
        }
    }
    quoted.push(b'\'');
    let pieces: Vec<&[u8]> = command.split("{}").map(str::as_bytes).collect();
    OsString::from_vec(pieces.join(&quoted[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_word() {
        let path = Path::new("/a b/it's $(x)");
        assert_eq!(with_name("{} -v; {}", path), r"'/a b/it'\''s $(x)' -v; '/a b/it'\''s $(x)'");
        assert_eq!(attempt("printf %s {} | wc -l", path, path, None), Ok(()));
    }

    #[test]
    fn what_differs_is_named() {
        let attempt = |command| attempt(command, Path::new("/bin/true"), Path::new("/bin/false"), None);
        assert_eq!(attempt("echo same"), Ok(()));
        assert_eq!(attempt("echo {}"), Ok(()), "but for the name");
        assert!(attempt("{}").unwrap_err().contains("exit status: 1 instead of exit status: 0"));
        assert!(attempt("test {} = /bin/true || echo two").unwrap_err().contains("another stdout"));
        // More than a pipe holds.
        let long = "seq 100000; test {} = /bin/true || echo more";
        assert!(attempt(long).unwrap_err().contains("another stdout"));
    }

    #[test]
    fn the_loader_says_the_same_of_both() {
        let check = |path: &str, copy: &str| {
            let file = ElfFile::open(Path::new(path)).unwrap();
            loader(&file, &Original::read(Path::new(path)).unwrap(), &File::open(copy).unwrap())
        };
        assert_eq!(check("/bin/true", "/bin/false"), Ok(()));
        assert!(check("/bin/true", "/etc/passwd").unwrap_err().contains("--verify"));
    }
}
