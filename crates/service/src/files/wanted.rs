// SPDX-License-Identifier: Apache-2.0
//! Finds the files that a configuration names.

use super::place::is_kept;
use hugelift_core::keep::{Config, base_of};
use hugelift_core::maps::FileId;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::elf::file_snapshot::executable;
use hugelift_linux::elf::needed::needed;
use hugelift_linux::lookup::resolve;
use hugelift_pages::pagecache::prime::CacheFile;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A limit for patterns that match far too much.
const MAX_FILES: usize = 4096;

/// Files to keep, and where to watch for others.
#[derive(Default)]
pub struct Wanted {
    /// The files in the order of the configuration, each once.
    pub files: Vec<CacheFile>,
    /// Names for which there is no file, or one that cannot be read: a line each.
    pub missing: Vec<String>,
    /// The folders to watch, and the names that matter in each.
    pub folders: BTreeMap<PathBuf, Names>,
    known: HashSet<FileId>,
    /// How many of the files the configuration names.
    named: usize,
}

/// Names in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// All names.
    All,
    /// These names.
    Some(HashSet<OsString>),
}

impl Names {
    /// Returns whether a change of the file `name` matters.
    pub fn hold(&self, name: &OsStr) -> bool {
        match self {
            Names::All => true,
            Names::Some(names) => names.contains(name),
        }
    }
}

impl Wanted {
    /// Adds the files at these paths that are there. A change in their folders is watched for, as of all others.
    pub fn add_observed<'a>(&mut self, config: &Config, paths: impl Iterator<Item = &'a Path>) {
        self.named = self.files.len();
        for path in paths {
            if path.exists() && !is_kept(path) {
                continue;
            }
            match CacheFile::open(path) {
                Ok(file) => self.add(config, file),
                // It was removed, perhaps by an upgrade that is not done yet.
                Err(_) => self.watch(path),
            }
        }
    }

    /// Returns the files that the configuration names, and those that were observed.
    pub fn parts(&self) -> (&[CacheFile], &[CacheFile]) {
        self.files.split_at(self.named.min(self.files.len()))
    }

    /// Finds what `config` names.
    pub fn find(config: &Config) -> Wanted {
        let mut wanted = Wanted::default();
        for name in &config.programs {
            if let Err(error) = wanted.add_program(config, name) {
                wanted.missing.push(error);
            }
        }
        for pattern in &config.files {
            wanted.add_pattern(config, pattern);
        }
        wanted.named = wanted.files.len();
        wanted
    }

    fn add_program(&mut self, config: &Config, name: &str) -> Result<(), String> {
        if name.contains('/') {
            self.watch(Path::new(name));
        }
        let path = resolve(OsStr::new(name)).map_err(|e| e.to_string())?;
        self.watch(&path);
        let elf = executable(&path).map_err(|e| e.to_string())?;
        let program = needed(ElfFile::open(&elf).map_err(|e| e.to_string())?);
        self.missing
            .extend(program.missing.iter().map(|lib| format!("{name}: the loader would not find {lib}")));
        program.files.into_iter().for_each(|file| self.add(config, CacheFile::Code(file)));
        Ok(())
    }

    fn add_pattern(&mut self, config: &Config, pattern: &str) {
        let mut found = false;
        // A path that exists is not a pattern, even if it contains * or ?.
        if Path::new(pattern).exists() {
            found = true;
            self.add_path(config, Path::new(pattern));
        } else {
            let base = base_of(pattern);
            match base.is_dir() {
                true => drop(self.folders.insert(base, Names::All)),
                false => self.watch(&base),
            }
            match glob::glob(pattern) {
                Err(error) => return self.missing.push(format!("files: '{pattern}': {error}")),
                Ok(paths) => {
                    for path in paths.flatten().take(MAX_FILES) {
                        found |= self.add_path(config, &path);
                    }
                }
            }
        }
        if !found {
            self.watch(Path::new(pattern));
            self.missing.push(format!("files: nothing matches '{pattern}'"));
        }
    }

    /// Adds the file at `path`; returns whether it can be read.
    fn add_path(&mut self, config: &Config, path: &Path) -> bool {
        match CacheFile::open(path) {
            Ok(file) => {
                self.add(config, file);
                true
            }
            Err(error) => {
                self.watch(path);
                self.missing.push(error.to_string());
                false
            }
        }
    }

    fn add(&mut self, config: &Config, file: CacheFile) {
        self.watch(file.path());
        let real = std::fs::canonicalize(file.path()).unwrap_or_else(|_| file.path().to_path_buf());
        self.watch(&real);
        let wanted = config.filter.takes_path(file.path()) && config.filter.takes_path(&real);
        if wanted && self.files.len() < MAX_FILES && self.known.insert(file.id()) {
            self.files.push(file);
        }
    }

    /// Watches for changes of the file with this path.
    fn watch(&mut self, path: &Path) {
        // If its folder does not exist, the nearest folder above it that exists is watched for it.
        let there =
            |p: &&Path| p.parent().is_some_and(|folder| folder.as_os_str().is_empty() || folder.is_dir());
        let Some(path) = path.ancestors().find(there) else { return };
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
        if let Names::Some(names) = self.folders.entry(folder).or_insert(Names::Some(HashSet::new())) {
            names.insert(name.to_os_string());
        }
    }
}
