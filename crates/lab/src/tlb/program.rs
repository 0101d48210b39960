// SPDX-License-Identifier: Apache-2.0
//! The size of a program's text and heap.

use anyhow::{Result, ensure};
use hugelift_core::printable::Escape;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_linux::elf::file_snapshot::{by_itself, of_file};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot::live;
use std::path::Path;

/// Sizes of a program: its working sets if it used all of its text and heap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Name that is shown.
    pub name: String,
    /// Code of the executable and of all its shared objects, in bytes.
    pub text: u64,
    /// Allocated writable private memory in bytes; `None` for a program that does not run.
    pub heap: Option<u64>,
}

/// Reads the sizes of a running process.
///
/// # Errors
/// The process does not exist, or this user may not read it.
pub fn of_process(pid: u32) -> Result<Sizes> {
    let snapshot = live(Some(pid), 0)?;
    let usages = Process::new(pid).smaps()?;
    ensure!(!snapshot.objects.is_empty(), "no ELF object is mapped in process {pid}, or it cannot be read");
    let own = usages.iter().filter(|u| u.mapping.prot.write).map(|u| u.anonymous.max(u.hugetlb()));
    Ok(Sizes { name: format!("process {pid}"), text: text(&snapshot), heap: Some(own.sum()) })
}

/// Reads the sizes of a program's file with its shared objects.
///
/// # Errors
/// The file is not an ELF file, or cannot be read.
pub fn of_program(path: &Path) -> Result<Sizes> {
    let program = of_file(path, by_itself)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).escaped().to_string();
    Ok(Sizes { name, text: text(&program.snapshot), heap: None })
}

fn text(snapshot: &Snapshot) -> u64 {
    snapshot.extents().iter().filter(|e| e.part == Part::Text).map(|e| e.range.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_file() {
        let running = of_process(std::process::id()).unwrap();
        assert!(running.text > 1 << 20 && running.heap.is_some_and(|heap| heap > 1 << 16), "{running:?}");
        let file = of_program(&std::env::current_exe().unwrap()).unwrap();
        assert!(file.text > 1 << 20 && file.text.abs_diff(running.text) < 1 << 20, "{file:?} {running:?}");
        assert_eq!(file.heap, None);
        assert!(of_process(1 << 30).is_err());
        assert!(of_program(Path::new("/proc/self/status")).is_err());
    }
}
