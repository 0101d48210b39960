// SPDX-License-Identifier: Apache-2.0
//! The files to prime: those that are named, and those that named programs and processes load.

use crate::program::say_missing;
use hugelift_core::elf::ElfError;
use hugelift_core::maps::{FileId, Mapping};
use hugelift_core::prime::FileReport;
use hugelift_core::printable::Escape;
use hugelift_linux::elf::elf_file::{ElfFile, FileError};
use hugelift_linux::elf::file_snapshot::executable;
use hugelift_linux::elf::needed::needed;
use hugelift_linux::elf::opened::opened_later;
use hugelift_linux::io::console::say;
use hugelift_linux::io::entry::is_trusted;
use hugelift_linux::lookup::{ExecError, resolve};
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_pages::pagecache::prime::{CacheFile, DataFile};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file to prime.
pub(super) enum Item {
    File {
        file: CacheFile,
        /// Why it must not be replaced.
        foreign: Option<String>,
        /// Where the process that was named has mapped it, if it is data.
        mappings: Vec<Mapping>,
    },
    Unreadable(FileReport),
}

impl Item {
    /// Returns a file that the user has named.
    pub fn of(file: CacheFile) -> Item {
        Item::File { file, foreign: None, mappings: Vec::new() }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        match self {
            Item::File { file, .. } => file.path(),
            Item::Unreadable(report) => &report.path,
        }
    }
}

/// All files to prime, each once.
#[derive(Default)]
pub(super) struct Wanted {
    pub items: Vec<Item>,
    known: HashSet<FileId>,
    /// A file or process that the user named cannot be read.
    pub failed: bool,
    /// Data files are refused: they are to be replaced, which is for code.
    code_alone: bool,
}

impl Wanted {
    /// Wants nothing yet, and code alone if it is `code_alone`.
    pub fn new(code_alone: bool) -> Wanted {
        Wanted { code_alone, ..Wanted::default() }
    }

    /// Adds a file that the user has named.
    fn add(&mut self, file: CacheFile) {
        if self.known.insert(file.id()) {
            self.items.push(Item::of(file));
        }
    }

    /// Adds a file that a program or process of user `namer` loads.
    fn add_named_by(&mut self, file: ElfFile, namer: Option<u32>) {
        if self.known.insert(file.id) {
            let foreign = foreign_owner(&file, namer);
            self.items.push(Item::File { file: CacheFile::Code(file), foreign, mappings: Vec::new() });
        }
    }

    fn add_data(&mut self, file: DataFile, mappings: Vec<Mapping>) {
        if self.known.insert(file.id) {
            self.items.push(Item::File { file: CacheFile::Data(file), foreign: None, mappings });
        }
    }

    fn unreadable(&mut self, path: &Path, error: String) {
        self.items.push(Item::Unreadable(FileReport::failed(path.into(), error)));
    }

    /// Adds a file or process that the user named and that cannot be read.
    pub fn fail(&mut self, path: &Path, error: String) {
        self.failed = true;
        self.unreadable(path, error);
    }

    /// Adds a file or program, with all that it loads if it is `with_libs`.
    pub fn add_target(&mut self, target: &OsStr, with_libs: bool) {
        let path = match find(target) {
            Ok(path) => path,
            Err(error) => return self.fail(Path::new(target), error.to_string()),
        };
        let code = executable(&path).and_then(|path| ElfFile::open(&path));
        let opened =
            if self.code_alone { code.map(CacheFile::Code) } else { CacheFile::or_data(code, &path) };
        match opened {
            Err(error) => self.fail(Path::new(target), error.to_string()),
            Ok(CacheFile::Code(file)) if with_libs => {
                let (path, owner) = (file.path.clone(), owner(&file));
                let mut files = needed(file);
                let missing = std::mem::take(&mut files.missing);
                let mut files = files.files.into_iter();
                files.by_ref().take(1).for_each(|program| self.add(CacheFile::Code(program)));
                files.for_each(|file| self.add_named_by(file, owner));
                for later in opened_later(&path) {
                    say(&format!(
                        "{}: also {}, which it opens later",
                        path.escaped(),
                        later.file.path.escaped()
                    ));
                    needed(later.file).files.into_iter().for_each(|file| self.add_named_by(file, owner));
                }
                say_missing(&path, &missing);
            }
            Ok(file) => self.add(file),
        }
    }

    /// Adds the files in a folder that have at least one huge page, in the order of their names, then those in the folders
    /// below it. Symbolic links are not followed, and no other file system is entered.
    pub fn add_folder(&mut self, folder: &Path, page: u64) {
        let device = match std::fs::metadata(folder) {
            Ok(meta) => meta.dev(),
            Err(error) => return self.fail(folder, format!("cannot read {}: {error}", folder.escaped())),
        };
        let mut folders = vec![folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let listed = std::fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut entries = match listed {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(&folder, format!("cannot read {}: {error}", folder.escaped()));
                    continue;
                }
            };
            entries.sort_by_key(std::fs::DirEntry::file_name);
            let mut below = Vec::new();
            for entry in &entries {
                let path = entry.path();
                let meta = match std::fs::symlink_metadata(&path) {
                    Ok(meta) => meta,
                    // It was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    // It may be where another file system is mounted, as a FUSE of another user, and those are not entered.
                    Err(error) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                        self.unreadable(&path, format!("cannot read {}: {error}", path.escaped()));
                        continue;
                    }
                    Err(error) => {
                        self.fail(&path, format!("cannot read {}: {error}", path.escaped()));
                        continue;
                    }
                };
                if meta.is_dir() && meta.dev() == device {
                    below.push(path);
                } else if meta.is_file() && meta.len() >= page {
                    self.add_target(path.as_os_str(), false);
                }
            }
            folders.extend(below.into_iter().rev());
        }
    }

    /// Adds the files that a process has mapped.
    pub fn add_process(&mut self, pid: u32) -> Result<(), ProcError> {
        let process = Process::new(pid).with_memory();
        let user = process.status()?.uid;
        let mapped = MappedFiles::of(process);
        // Each file once, with all its mappings.
        let mut files: BTreeMap<FileId, Vec<Mapping>> = BTreeMap::new();
        for mapping in process.maps()?.into_iter().filter(|m| m.is_file() && m.path.has_root()) {
            files.entry(mapping.file).or_default().push(mapping);
        }
        for mappings in files.into_values() {
            let code = mappings.iter().any(|mapping| mapping.prot.exec);
            let Some(mapping) = mappings.first().cloned() else { continue };
            let path = mapping.path.clone();
            if mapping.deleted {
                // Only code matters: programs delete data files that they still use.
                if code {
                    self.unreadable(
                        &path,
                        format!(
                            "{} was deleted or replaced since process {pid} has mapped it: restart it",
                            path.escaped()
                        ),
                    );
                }
                continue;
            }
            match open_in(&mapped, &mapping) {
                Ok(file) => self.add_named_by(file, user),
                Err(FileError::Elf { source: ElfError::NotElf(_), .. }) if self.code_alone => {}
                Err(FileError::Elf { source: ElfError::NotElf(_), .. }) => {
                    data_in(&mapped, &mapping)
                        .into_iter()
                        .for_each(|file| self.add_data(file, mappings.clone()));
                }
                Err(FileError::NotRegular { .. }) => {}
                Err(error) if code => self.unreadable(&path, error.to_string()),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

fn owner(file: &ElfFile) -> Option<u32> {
    file.file().metadata().ok().map(|meta| meta.uid())
}

/// Says why a file is not replaced: it belongs to one user, and another user decides that it is loaded.
fn foreign_owner(file: &ElfFile, namer: Option<u32>) -> Option<String> {
    let owner = owner(file);
    if [owner, namer].into_iter().any(|uid| uid.is_some_and(is_trusted)) || owner == namer {
        return None;
    }
    let shown = |uid: Option<u32>| uid.map_or("an unknown user".to_string(), |uid| format!("user {uid}"));
    Some(format!(
        "it belongs to {}, and {} has loaded it; to replace it, name it: hugelift prime --replace {}",
        shown(owner),
        shown(namer),
        file.path.escaped()
    ))
}

/// Opens a file that a process has mapped. The process may be in a container: the file keeps its path in the mount
/// namespace of the process.
fn open_in(files: &MappedFiles, mapping: &Mapping) -> Result<ElfFile, FileError> {
    let failed = |source| FileError::Io { path: (&mapping.path).into(), source };
    let file = files.find(mapping).and_then(|found| found.open()).map_err(failed)?;
    let mut file = ElfFile::of_open(&file)?;
    file.path.clone_from(&mapping.path);
    Ok(file)
}

/// Does the same with a file that is not ELF.
fn data_in(files: &MappedFiles, mapping: &Mapping) -> io::Result<DataFile> {
    let file = files.find(mapping).and_then(|found| found.open())?;
    DataFile::of_open(&file, &mapping.path)
}

/// Opens the data file that `target` names; `None` if it names a program, or nothing that can be read.
pub(super) fn data_file(target: &OsStr) -> Option<CacheFile> {
    let path = find(target).ok()?;
    let code = executable(&path).and_then(|path| ElfFile::open(&path));
    CacheFile::or_data(code, &path).ok().filter(|file| matches!(file, CacheFile::Data(_)))
}

/// Returns the path of a target. A name without a slash is looked up on PATH, then in the current
/// folder.
pub(crate) fn find(target: &OsStr) -> Result<PathBuf, ExecError> {
    if target.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(target));
    }
    match resolve(target) {
        Ok(path) => Ok(path),
        // What is no file is named when it is opened.
        Err(_) if std::fs::symlink_metadata(target).is_ok() => Ok(PathBuf::from(target)),
        Err(error) => Err(error),
    }
}
