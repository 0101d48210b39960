// SPDX-License-Identifier: Apache-2.0
//! Objects that a program opens by dlopen(3). For a process they are the objects that it has open; for a
//! program that does not run, the objects that programs of its kind are known to open.
//!
//! | program | opens |
//! |---|---|
//! | java and the other tools of a JDK | `../lib/server/libjvm.so` |
//! | PostgreSQL | `../lib/llvmjit.so`, and with it libLLVM |
//! | python | modules in `lib-dynload` and `dist-packages` or `site-packages` |
//! | php | modules in `/usr/lib/php/*`, `/usr/lib64/php/modules` |
//! | node | addons (`*.node`) in the global and the current `node_modules` |

use crate::elf::elf_file::ElfFile;
use crate::elf::needed::needed;
use crate::machine::base_page;
use crate::proc::mapped::MappedFiles;
use crate::proc::procfs::Process;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::FileId;
use hugelift_core::prime::candidates;
use hugelift_core::snapshot::{Part, Snapshot};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// How many entries of directories are read at most: a limit for very large trees.
const MAX_ENTRIES: usize = 20_000;
/// Modules are in packages, not deeper.
const MAX_DEPTH: usize = 5;

/// An object that a program will open.
#[derive(Debug)]
pub struct Later {
    /// The object.
    pub file: ElfFile,
    /// Bytes of its code in whole huge pages.
    pub whole: u64,
}

/// Returns the objects with at least a huge page of code that the program at `path` is known to open,
/// the largest first.
pub fn opened_later(path: &Path) -> Vec<Later> {
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    let mut later: Vec<Later> = places(&path).into_iter().filter_map(|file| large(&file)).collect();
    later.sort_by_key(|l| std::cmp::Reverse(l.whole));
    let mut known: HashSet<FileId> = HashSet::new();
    later.retain(|l| known.insert(l.file.id));
    later
}

fn large(path: &Path) -> Option<Later> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() < PageSize::MB2.bytes() {
        return None;
    }
    let file = ElfFile::open(path).ok()?;
    let all = candidates(&file.headers, 0, meta.len(), base_page(), PageSize::MB2);
    let whole = all.iter().filter(|c| c.part == Part::Text).map(|c| c.whole).sum();
    (whole > 0).then_some(Later { file, whole })
}

fn places(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Vec::new();
    };
    let home = folder.parent().unwrap_or(folder);
    let mut found: Vec<PathBuf> =
        ["lib/server/libjvm.so", "lib/client/libjvm.so", "lib/amd64/server/libjvm.so"]
            .map(|at| home.join(at))
            .into_iter()
            .filter(|at| at.exists())
            .collect();
    let mut left = MAX_ENTRIES;
    let mut walk = |folder: &Path, end: &str| below(folder, end, MAX_DEPTH, &mut left, &mut found);
    if name.starts_with("postgres") {
        walk(&home.join("lib"), "llvmjit.so");
    } else if let Some(version) = name.strip_prefix("python") {
        let major = version.split('.').next().unwrap_or_default();
        for lib in ["lib", "lib64"] {
            walk(&home.join(lib).join(name).join("lib-dynload"), ".so");
            walk(&home.join(lib).join(name).join("site-packages"), ".so");
            walk(&home.join(lib).join(format!("python{major}/dist-packages")), ".so");
            walk(&home.join("local").join(lib).join(name).join("dist-packages"), ".so");
        }
    } else if name.starts_with("php") {
        walk(&home.join("lib/php"), ".so");
        walk(&home.join("lib64/php/modules"), ".so");
    } else if name == "node" || name == "nodejs" {
        walk(&home.join("lib/node_modules"), ".node");
        walk(Path::new("node_modules"), ".node");
    }
    found
}

/// Finds the files below `folder` whose names end in `end`; links to directories are not followed.
fn below(folder: &Path, end: &str, depth: usize, left: &mut usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            below(&entry.path(), end, depth - 1, left, found);
        } else if !kind.is_dir() && entry.file_name().as_encoded_bytes().ends_with(end.as_bytes()) {
            found.push(entry.path());
        }
    }
}

/// Returns the paths of the objects of a process that its executable does not need: the process has opened
/// them itself.
pub fn opened(pid: u32, snapshot: &Snapshot) -> HashSet<PathBuf> {
    // If the executable cannot be read, the objects that it needs are not known.
    let exe =
        MappedFiles::of(Process::new(pid)).executable().ok().and_then(|file| ElfFile::of_open(&file).ok());
    let Some(exe) = exe else { return HashSet::new() };
    let mut known = HashSet::new();
    let mut paths = HashSet::new();
    for file in needed(exe).files {
        known.insert(file.id);
        // Some file systems show another device in /proc/PID/maps than stat(2) does.
        paths.insert(std::fs::canonicalize(&file.path).unwrap_or(file.path));
    }
    let objects = snapshot.objects.iter().filter(|o| !o.executable);
    let others = objects.filter(|o| !known.contains(&o.file) && !paths.contains(&o.path));
    others.map(|o| o.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_needs_it_has_not_opened() {
        let snapshot = crate::proc::snapshot::live(None, 0).unwrap();
        assert_eq!(opened(std::process::id(), &snapshot), HashSet::new());
        assert!(opened_later(&std::env::current_exe().unwrap()).is_empty());
        assert!(opened_later(Path::new("/no/such/program")).is_empty());
    }
}
