// SPDX-License-Identifier: Apache-2.0
//! The library inside the program (`hugelift-inside`), which guards fork(2): finds it, and makes programs load
//! it.

use crate::launch::preload::{self, NoPreload};
use crate::launch::program::set_variable;
use hugelift_inside::names;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The library.
#[derive(Debug)]
pub struct Inside {
    library: PathBuf,
}

impl Inside {
    /// Returns the library, if the program at `path` can load it. Searches the folder of this executable,
    /// then `../lib/hugelift`.
    ///
    /// # Errors
    /// [`NoPreload`]
    pub fn for_program(path: &Path) -> Result<Inside, NoPreload> {
        let inside = Inside::find()?;
        preload::check(path)?;
        Ok(inside)
    }

    fn find() -> Result<Inside, NoPreload> {
        let exe = std::env::current_exe().map_err(NoPreload::NoPath)?;
        let beside = exe.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/hugelift");
        for library in [&beside, &installed].map(|dir| dir.join(names::LIBRARY)) {
            match preload::check_library(&library) {
                Err(NoPreload::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
                Ok(()) if library.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) => {
                    return Err(NoPreload::Unnameable(library.into()));
                }
                Ok(()) => return Ok(Inside { library }),
            }
        }
        Err(NoPreload::NotThere { beside: beside.into(), installed: installed.into() })
    }

    /// Makes the program load the library, before those of the user's `LD_PRELOAD`, and the library guard
    /// fork(2), with `reserve` pages of the pool kept for a child. The library removes both variables before
    /// `main`.
    ///
    /// # Errors
    /// setenv(3).
    pub fn guard(&self, reserve: u64) -> io::Result<()> {
        let before = std::env::var_os(names::PRELOAD).unwrap_or_default();
        set_variable(names::PRELOAD, preloaded(&self.library, &before))?;
        set_variable(names::GUARD, reserve.to_string())
    }
}

/// Returns a value of `LD_PRELOAD` with `library` before the old entries, unless it is among them.
fn preloaded(library: &Path, before: &OsStr) -> OsString {
    let ours = library.as_os_str();
    let is_there = before.as_bytes().split(|b| b" :".contains(b)).any(|entry| entry == ours.as_bytes());
    let mut all = ours.to_owned();
    match before {
        before if is_there => return before.to_owned(),
        before if before.is_empty() => {}
        before => {
            all.push(":");
            all.push(before);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_libraries_stay() {
        let merged = |before: &str| preloaded(Path::new("/x/l.so"), OsStr::new(before));
        assert_eq!(merged(""), "/x/l.so");
        assert_eq!(merged("/a.so b.so"), "/x/l.so:/a.so b.so");
        assert_eq!(merged("/x/l.so:/a.so"), "/x/l.so:/a.so");
        assert_eq!(merged("/a.so /x/l.so"), "/a.so /x/l.so");
        assert_eq!(merged("/y/x/l.so"), "/x/l.so:/y/x/l.so");
    }
}
