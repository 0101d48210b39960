// SPDX-License-Identifier: Apache-2.0
//! Whether a copy does what the file does: the loader's opinion, and the user's own command.

use crate::elf_file::ElfFile;
use hugelift_core::printable::{Escape, printable_lines, text_to_parse};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A loader that only looks at a file takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Any program that has a loader, for objects that name none.
const SHELL: &str = "/bin/sh";

/// Asks the loader to map each of the two and run nothing (`--verify`, ld.so(8)): it has to say the
/// same of both. A static program has none to be asked.
pub(super) fn loader(file: &Path, copy: &Path) -> Result<(), String> {
    let Some(loader) = loader_of(file) else { return Ok(()) };
    let ask = |path: &Path| {
        let mut command = Command::new(&loader);
        command.arg("--verify").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_remove("LD_PRELOAD").env_remove("LD_AUDIT").env_remove("LD_DEBUG");
        let mut child = command.spawn().map_err(|e| format!("cannot start {}: {e}", loader.escaped()))?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = child.try_wait() {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Our own child, which has had its time.
        let _ = child.kill().and_then(|()| child.wait());
        Err(format!("{} --verify does not end", loader.escaped()))
    };
    let (before, after) = (ask(file)?, ask(copy)?);
    if before == after {
        return Ok(());
    }
    Err(format!("{} --verify ends with {after} instead of {before}", loader.escaped()))
}

/// The loader that the object names, or that programs of this machine have.
fn loader_of(file: &Path) -> Option<PathBuf> {
    let object = ElfFile::open(file).ok()?;
    if let Some(own) = object.interp() {
        return Some(own);
    }
    if object.headers.dynamic.is_none() || !object.headers.relocatable {
        return None;
    }
    let shell = ElfFile::open(Path::new(SHELL)).ok()?;
    shell.interp().filter(|_| shell.headers.machine == object.headers.machine)
}

/// Runs the user's shell command with each of the two for `{}`: it has to end with the same status
/// and write the same.
pub(super) fn attempt(command: &str, file: &Path, copy: &Path) -> Result<(), String> {
    let run = |path: &Path| -> Result<Output, String> {
        let line = with_name(command, path);
        let run = Command::new(SHELL).arg("-c").arg(&line).stdin(Stdio::null()).output();
        run.map_err(|e| format!("cannot run '{command}': {e}"))
    };
    let (before, after) = (run(file)?, run(copy)?);
    if before.status != after.status {
        return Err(format!("'{command}' ends with {} instead of {}", after.status, before.status));
    }
    // A program may say its own name.
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

/// The command with the file's name, in quotes, for each `{}`.
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
        assert_eq!(attempt("printf %s {} | wc -l", path, path), Ok(()));
    }

    #[test]
    fn what_differs_is_named() {
        let (a, b) = (Path::new("/bin/true"), Path::new("/bin/false"));
        assert_eq!(attempt("echo same", a, b), Ok(()));
        assert_eq!(attempt("echo {}", a, Path::new("/bin/false")), Ok(()), "but for the name");
        assert!(attempt("{}", a, b).unwrap_err().contains("exit status: 1 instead of exit status: 0"));
        assert!(attempt("test {} = /bin/true || echo two", a, b).unwrap_err().contains("another stdout"));
        assert_eq!(loader(a, b), Ok(()));
        assert!(loader(a, Path::new("/etc/passwd")).unwrap_err().contains("--verify"));
    }
}
