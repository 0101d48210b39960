// SPDX-License-Identifier: Apache-2.0
//! Finds out, before a program starts, whether its loader can load the fork guard.
//!
//! A loader that cannot load what `LD_PRELOAD` names says so on the program's stderr. A sanitizer's
//! runtime that must be loaded first ends the program. A static program passes `LD_PRELOAD` on to its children,
//! which the fork guard would have removed. Such programs get no fork guard.

use hugelift_core::elf::ElfError;
use hugelift_core::printable::Untrusted;
use hugelift_inject::arch;
use hugelift_inside::names::{LIBRARY, PRELOAD};
use hugelift_linux::elf::elf_file::{ElfFile, FileError, open_head};
use hugelift_linux::script::{MAX_SCRIPTS, interpreter};
use nix::unistd::{AccessFlags, eaccess};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why the library is not loaded into a program.
#[derive(Debug, thiserror::Error)]
pub enum CannotLoad {
    /// It is not where it should be, and cannot be put into memory.
    #[error(
        "no {LIBRARY} in {beside} or {installed}, and hugelift cannot make a file in memory of its own copy \
         (memfd_create(2): {source}); make install puts it into {installed}"
    )]
    NotThere {
        /// The folder of hugelift.
        beside: Untrusted,
        /// The folder for libraries that belongs to it.
        installed: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The loader takes a space or a colon for a separator.
    #[error("{0} has a space or a colon in its path, which LD_PRELOAD cannot hold")]
    Unnameable(Untrusted),
    /// The path of this executable, from which the library is searched, is unknown.
    #[error("cannot find out where hugelift is: {0}; is /proc mounted?")]
    NoPath(io::Error),
    /// This user cannot read it.
    #[error("user {user} cannot read {}: {source}; chmod o+{} {}", library, if at == library { "r" } else { "x" }, at)]
    Unreadable {
        /// The library.
        library: Untrusted,
        /// The file or the folder on the way to it whose permissions are the reason.
        at: Untrusted,
        /// The user's id.
        user: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It cannot be mapped as code.
    #[error(
        "{} cannot be mapped as code: {source}; is it on a file system that is mounted with noexec?",
        library
    )]
    Unmappable {
        /// The library.
        library: Untrusted,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program is built for another word size.
    #[error("{0} is a 32-bit program, and {LIBRARY} is a 64-bit library")]
    Class32(Untrusted),
    /// An emulator runs the program (binfmt_misc).
    #[error("{0} is built for another machine than {LIBRARY}")]
    OtherMachine(Untrusted),
    /// The program names no loader.
    #[error("{0} is static (it names no loader), so it cannot load {LIBRARY}")]
    Static(Untrusted),
    /// The program has a runtime that ends it if another library is loaded before it.
    #[error("{wanted_by} wants {runtime}, which ends a program in which {LIBRARY} is loaded first")]
    ComesFirst {
        /// The program, or the variable that names the runtime.
        wanted_by: Untrusted,
        /// The runtime's name.
        runtime: Untrusted,
    },
}

/// Checks that the loader of the program at `path` can load the library, and that the program then runs.
///
/// A file that cannot be read or is not a program passes: execve(2) will report it.
///
/// # Errors
/// Why the library is not loaded.
pub(crate) fn check(path: &Path) -> Result<(), CannotLoad> {
    let path = behind_scripts(path);
    let executable = match ElfFile::open(&path) {
        Ok(executable) => executable,
        Err(FileError::Elf { source: ElfError::Class32, .. }) => {
            return Err(CannotLoad::Class32(path.into()));
        }
        Err(_) => return Ok(()),
    };
    if executable.headers.machine != arch::MACHINE {
        return Err(CannotLoad::OtherMachine(path.into()));
    }
    if executable.interp().is_none() {
        return Err(CannotLoad::Static(path.into()));
    }
    let dynamic = executable.dynamic();
    let needed = dynamic.needed.iter().filter_map(|&name| executable.string(&dynamic, name));
    let preloaded = std::env::var_os(PRELOAD).unwrap_or_default();
    let preloaded = preloaded.as_bytes().split(|byte| b" :".contains(byte)).map(OsStr::from_bytes);
    let first = |name: &OsStr| must_be_first(name.as_bytes());
    let found = needed.map(|name| (path.as_os_str(), name)).find(|(_, name)| first(name));
    let found = found.or_else(|| {
        let preloaded = preloaded.map(|name| (OsStr::new(PRELOAD), name.to_os_string()));
        { preloaded }.find(|(_, name)| first(name))
    });
    match found {
        None => Ok(()),
        Some((by, name)) => {
            Err(CannotLoad::ComesFirst { wanted_by: Untrusted::from(by), runtime: Untrusted::from(name) })
        }
    }
}

/// Returns the program that the kernel starts for `path`: the last of a chain of `#!`.
fn behind_scripts(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SCRIPTS {
        match open_head(&path).ok().and_then(|(_, head, _)| interpreter(&head)) {
            Some(next) => path = next,
            None => break,
        }
    }
    path
}

/// Returns whether a library of this name or path ends the program if it is not the first library in
/// the loader's list.
///
/// AddressSanitizer's shared runtime does: gcc's `libasan.so`, clang's `libclang_rt.asan`. The other
/// runtimes of gcc and clang (tsan, lsan, ubsan, hwasan) do not check, and work after the library.
fn must_be_first(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    file.starts_with(b"libasan.so") || file.starts_with(b"libclang_rt.asan")
}

/// Checks that the loader of a program of this user can read `library` and map it as code.
///
/// # Errors
/// Why it cannot; [`CannotLoad::Unreadable`] with `NotFound` if there is no library.
pub(crate) fn check_library(library: &Path) -> Result<(), CannotLoad> {
    let file = File::open(library).map_err(|source| CannotLoad::Unreadable {
        library: library.into(),
        at: obstacle(library, |path, flags| eaccess(path, flags).is_ok()).into(),
        user: nix::unistd::geteuid().as_raw(),
        source,
    })?;
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours, and nothing of the
    // mapping is executed or read.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            1,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let source = io::Error::last_os_error();
        return Err(CannotLoad::Unmappable { library: library.into(), source });
    }
    // SAFETY: mapped just now, and not used.
    unsafe { libc::munmap(mapped, 1) };
    Ok(())
}

/// Returns the first folder in the path of `file` that may not be searched, else `file`.
fn obstacle(file: &Path, may: impl Fn(&Path, AccessFlags) -> bool) -> PathBuf {
    let mut folders: Vec<&Path> = file.ancestors().skip(1).filter(|p| *p != Path::new("")).collect();
    folders.reverse();
    folders.into_iter().find(|folder| !may(folder, AccessFlags::X_OK)).unwrap_or(file).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::printable::Escape as _;

    #[test]
    fn runtimes_that_must_be_first() {
        for name in
            ["libasan.so.8", "/usr/lib/libasan.so", "libclang_rt.asan-x86_64.so", "libclang_rt.asan.so"]
        {
            assert!(must_be_first(name.as_bytes()), "{name}");
        }
        for name in ["libtsan.so.2", "liblsan.so.0", "libubsan.so.1", "libhwasan.so.0", "libc.so.6", ""] {
            assert!(!must_be_first(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_closes_a_path() {
        let denies = |closed: &str| {
            let closed = PathBuf::from(closed);
            obstacle(Path::new("/a/b/c.so"), |path, _| path != closed)
        };
        assert_eq!(denies("/a"), Path::new("/a"));
        assert_eq!(denies("/a/b"), Path::new("/a/b"));
        assert_eq!(denies("/none"), Path::new("/a/b/c.so"));
    }

    #[test]
    fn programs_for_other_machines() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let dir = tempfile::TempDir::new().unwrap();
        let patched = |name: &str, at: usize, byte: u8| {
            let mut bytes = own.clone();
            bytes[at] = byte;
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        // e_machine is EM_MIPS; EI_CLASS is ELFCLASS32.
        let (mips, class32) = (patched("mips", 18, 8), patched("class32", 4, 1));
        assert!(matches!(check(&mips), Err(CannotLoad::OtherMachine(path)) if *path == *mips));
        assert!(matches!(check(&class32), Err(CannotLoad::Class32(path)) if *path == *class32));
        let script = dir.path().join("script");
        std::fs::write(&script, format!("#!{}\n", class32.escaped())).unwrap();
        assert!(matches!(check(&script), Err(CannotLoad::Class32(path)) if *path == *class32));
    }

    #[test]
    fn this_program_can_load_it() {
        let own = check(Path::new("/proc/self/exe"));
        match cfg!(target_feature = "crt-static") {
            true => assert!(matches!(own, Err(CannotLoad::Static(_)))),
            false => own.unwrap(),
        }
        check(Path::new("/nowhere")).unwrap();
        check(Path::new("/")).unwrap();
    }
}
