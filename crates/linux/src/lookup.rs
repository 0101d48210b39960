// SPDX-License-Identifier: Apache-2.0
//! Finds the file that a program's name means, as execvp(3) does.
//!
//! execvp(3) tries execve(2) on one file after the other. Only execve(2) decides whether a file can be
//! executed; stat(2) before it saves attempts.

use crate::io::open;
use crate::io::read::read_head;
use crate::script::interpreter;
use hugelift_core::elf::{Headers, Machine};
use hugelift_core::printable::{Escape as _, Untrusted, quoted};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The machine whose programs this kernel executes.
const OWN: Machine = if cfg!(target_arch = "aarch64") { Machine::AArch64 } else { Machine::X86_64 };

/// Why a program could not be started, with env(1)'s exit status.
#[derive(Debug, thiserror::Error)]
#[error("cannot execute '{program}': {source}{}", hint(program, source))]
pub struct ExecError {
    /// The program, as the user named it.
    pub program: Untrusted,
    /// The kernel's answer.
    pub source: io::Error,
}

/// Returns what else is to be said: the program is there without its interpreter, or its name is a whole command line.
fn hint(program: &Path, source: &io::Error) -> String {
    let is_absent = source.raw_os_error() == Some(libc::ENOENT);
    let mut files = Lookup::new(program.as_os_str()).files.take_while(|_| is_absent);
    match files.find_map(|file| lacking(&file)) {
        Some(path) => format!("; the file is there, but its interpreter {} is not", path.escaped()),
        None => words_in_one(program),
    }
}

/// Returns what helps if a name is a whole command line.
fn words_in_one(program: &Path) -> String {
    let text = program.as_os_str().as_bytes().trim_ascii();
    let Some(end) = text.iter().position(u8::is_ascii_whitespace) else { return String::new() };
    match resolve(OsStr::from_bytes(&text[..end])) {
        Ok(_) => {
            format!("; it is one word: leave out its quotes, or use sh -c {}", quoted(program.as_os_str()))
        }
        Err(_) => String::new(),
    }
}

impl ExecError {
    /// Returns 127 if there is no such program, 126 if there is one that cannot be executed.
    pub fn status(&self) -> i32 {
        if self.source.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 }
    }
}

/// The files that a name may mean, in the order in which execvp(3) tries them.
#[derive(Debug)]
pub struct Lookup {
    name: OsString,
    files: std::vec::IntoIter<PathBuf>,
    /// The name has no slash: after a file that is refused, the next one is tried.
    searched: bool,
    /// A file was refused with EACCES, which execvp(3) reports if no later file can be executed.
    denied: bool,
    last: i32,
}

impl Lookup {
    /// Returns the files that `name` may mean.
    pub fn new(name: &OsStr) -> Lookup {
        let searched = !name.as_bytes().contains(&b'/');
        let files = match searched {
            _ if name.is_empty() => Vec::new(),
            false => vec![PathBuf::from(name)],
            true => {
                let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
                let in_dir = |dir: PathBuf| match dir.as_os_str().is_empty() {
                    true => PathBuf::from(name),
                    false => dir.join(name),
                };
                std::env::split_paths(&path).map(in_dir).collect()
            }
        };
        Lookup { name: name.into(), files: files.into_iter(), searched, denied: false, last: libc::ENOENT }
    }

    /// Returns the next file, without a check.
    pub fn next_file(&mut self) -> Option<PathBuf> {
        self.files.next()
    }

    /// Returns the next file for which stat(2) shows no reason against execve(2). Refuses those before it.
    ///
    /// # Errors
    /// See [`Lookup::refuse`]; also if there is no such file.
    pub fn next_promising(&mut self) -> Result<PathBuf, ExecError> {
        while let Some(file) = self.files.next() {
            match foresee(&file) {
                None => return Ok(file),
                Some(errno) => self.refuse(errno)?,
            }
        }
        Err(self.failure())
    }

    /// Notes that execve(2) of the last file failed with `errno`.
    ///
    /// # Errors
    /// No other file is tried after this `errno`.
    pub fn refuse(&mut self, errno: i32) -> Result<(), ExecError> {
        self.last = errno;
        self.denied |= errno == libc::EACCES;
        let goes_on = matches!(
            errno,
            libc::EACCES | libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT | libc::ESTALE
        );
        if self.searched && goes_on { Ok(()) } else { Err(self.error(errno)) }
    }

    /// Returns why no file could be executed.
    pub fn failure(&self) -> ExecError {
        self.error(if self.denied { libc::EACCES } else { self.last })
    }

    fn error(&self, errno: i32) -> ExecError {
        let program = self.name.as_os_str().into();
        ExecError { program, source: io::Error::from_raw_os_error(errno) }
    }
}

/// Returns the file that execvp(3) would start for `name`, as far as stat(2) and the files' content show.
///
/// # Errors
/// The errors of execvp(3): ENOENT if there is no file, EACCES if no file may be executed, ...
pub fn resolve(name: &OsStr) -> Result<PathBuf, ExecError> {
    let mut lookup = Lookup::new(name);
    loop {
        let file = lookup.next_promising()?;
        let denied = nix::unistd::eaccess(&file, nix::unistd::AccessFlags::X_OK).err().map(|e| e as i32);
        match denied.or_else(|| lacking(&file).map(|_| libc::ENOENT)) {
            None => return Ok(file),
            Some(errno) => lookup.refuse(errno)?,
        }
    }
}

/// Returns the errno of execve(2) for `file`, if stat(2) is enough to know that it fails.
fn foresee(file: &Path) -> Option<i32> {
    match std::fs::metadata(file) {
        Ok(meta) => (!meta.is_file() || meta.mode() & 0o111 == 0).then_some(libc::EACCES),
        Err(error) => match error.raw_os_error() {
            Some(
                errno @ (libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP | libc::ENAMETOOLONG),
            ) => Some(errno),
            // A seccomp filter may refuse stat(2) with any errno, and allow execve(2).
            _ => None,
        },
    }
}

/// Returns the interpreter of `file`, a script or an ELF program, if it does not exist.
fn lacking(file: &Path) -> Option<PathBuf> {
    let head = open::regular(file).and_then(|(file, _)| read_head(&file)).ok()?;
    let loader = || {
        // Programs of other machines may be run by an emulator, which has its own place for their interpreters.
        let path = Headers::parse(&head).ok().filter(|headers| headers.machine == OWN)?.interp?;
        let start = usize::try_from(path.offset).ok()?;
        let path = head.get(start..start.checked_add(usize::try_from(path.size).ok()?)?)?;
        Some(PathBuf::from(OsStr::from_bytes(
            path.split(|b| *b == 0).next().filter(|path| !path.is_empty())?,
        )))
    };
    interpreter(&head).or_else(loader).filter(|path| foresee(path) == Some(libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_resolve_as_execvp_does() {
        assert_eq!(resolve(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        assert!(resolve(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(resolve(OsStr::new("no-such-program")).unwrap_err().status(), 127);
        assert_eq!(resolve(OsStr::new("")).unwrap_err().status(), 127);
        assert_eq!(resolve(OsStr::new("/etc/passwd")).unwrap_err().status(), 126);
        assert_eq!(resolve(OsStr::new("/")).unwrap_err().status(), 126);
        assert_eq!(resolve(OsStr::new("/etc/passwd/x")).unwrap_err().status(), 126);
    }

    #[test]
    fn an_interpreter_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::fs::read("/proc/self/exe").unwrap();
        let Some(loader) = Headers::parse(&own).unwrap().interp else {
            return println!("SKIP: this test program is static");
        };
        let mut moved = own.clone();
        moved[loader.offset as usize..][..9].copy_from_slice(b"/no/such\0");
        let script = b"#! /no/such -x\n".to_vec();
        for (name, bytes) in [("elf", moved), ("script", script)] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            let error = resolve(path.as_os_str()).unwrap_err();
            assert_eq!(error.status(), 127, "{name}");
            let said = error.to_string();
            assert!(said.ends_with("; the file is there, but its interpreter /no/such is not"), "{said}");
        }
        let said = resolve(OsStr::new("/no/such/program")).unwrap_err().to_string();
        assert!(!said.contains("interpreter"), "{said}");
    }

    #[test]
    fn the_last_answer_counts_unless_one_was_a_refusal() {
        let of = |errnos: &[i32]| {
            let mut lookup = Lookup::new(OsStr::new("x"));
            errnos.iter().for_each(|errno| lookup.refuse(*errno).unwrap());
            lookup.failure().source.raw_os_error()
        };
        assert_eq!(of(&[libc::ENOENT, libc::ENOTDIR]), Some(libc::ENOTDIR));
        assert_eq!(of(&[libc::ENOTDIR, libc::ENOENT]), Some(libc::ENOENT));
        assert_eq!(of(&[libc::EACCES, libc::ENOENT]), Some(libc::EACCES));
        assert!(Lookup::new(OsStr::new("x")).refuse(libc::E2BIG).is_err());
        assert!(Lookup::new(OsStr::new("./x")).refuse(libc::ENOENT).is_err());
    }
}
