// SPDX-License-Identifier: Apache-2.0
//! A program that does not run, named on the command line.

use crate::failure::Failure;
use hugelift_core::policy::Policy;
use hugelift_core::printable::{Escape, Untrusted};
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::elf::file_snapshot::of_file;
use hugelift_linux::io::console::say;
use hugelift_linux::lookup::ExecError;
use hugelift_linux::lookup::resolve;
use hugelift_linux::machine::thp_page;
use hugelift_pages::base::{Wanted, of_run};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the path of a program. A name without a slash is looked up on PATH. What has a slash need
/// not be executable: shared objects are not.
///
/// # Errors
/// PATH has no such program.
pub fn path_of(name: &OsStr) -> Result<PathBuf, ExecError> {
    if name.as_bytes().contains(&b'/') { Ok(PathBuf::from(name)) } else { resolve(name) }
}

/// Returns the snapshot that the program at `path` would give when started with `policy`, and says
/// which shared objects its loader would not find.
///
/// # Errors
/// The file cannot be read, or is not an ELF program.
pub fn file_snapshot(path: &Path, policy: &Policy) -> Result<Snapshot, Failure> {
    let program = of_file(path, of_run(Wanted { policy, huge: thp_page() }))?;
    say_missing(path, &program.missing);
    Ok(program.snapshot)
}

/// Says which shared objects the loader of the program at `path` would not find.
pub fn say_missing(path: &Path, missing: &[Untrusted]) {
    for missing in missing {
        say(&format!("{}: the loader would not find {missing}; see LD_LIBRARY_PATH", path.escaped()));
    }
}
