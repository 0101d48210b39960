// SPDX-License-Identifier: Apache-2.0
//! A file whose page cache is primed: code, or data that programs map.

use super::cache;
use super::data::DataFile;
use hugelift_core::addr::PageSize;
use hugelift_core::elf::ElfError;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{Candidate, candidates, stretches};
use hugelift_linux::elf::elf_file::{ElfFile, FileError};
use hugelift_linux::machine;
use std::fs::File;
use std::path::Path;

/// What distinguishes two states of a file: length, modification and change time.
pub type Stamp = Option<[i64; 5]>;

/// A file whose page cache is primed.
#[derive(Debug)]
pub enum CacheFile {
    /// An ELF file.
    Code(ElfFile),
    /// Any other regular file.
    Data(DataFile),
}

impl CacheFile {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<CacheFile, FileError> {
        CacheFile::or_data(ElfFile::open(path), path)
    }

    /// Takes a file that was opened as code; if it is not ELF, opens what is at `path` as data.
    ///
    /// # Errors
    /// It is code that cannot be read, or data that cannot be opened.
    pub fn or_data(code: Result<ElfFile, FileError>, path: &Path) -> Result<CacheFile, FileError> {
        match code {
            Err(FileError::Elf { source: ElfError::NotElf(_), .. }) => DataFile::open(path)
                .map(CacheFile::Data)
                .map_err(|source| FileError::Io { path: path.into(), source }),
            code => code.map(CacheFile::Code),
        }
    }

    /// Returns its device and inode.
    pub fn id(&self) -> FileId {
        match self {
            CacheFile::Code(file) => file.id,
            CacheFile::Data(file) => file.id,
        }
    }

    /// Returns the path by which it was found.
    pub fn path(&self) -> &Path {
        match self {
            CacheFile::Code(file) => &file.path,
            CacheFile::Data(file) => &file.path,
        }
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        match self {
            CacheFile::Code(file) => file.file(),
            CacheFile::Data(file) => file.file(),
        }
    }

    /// Returns the state that it is in. A data file may be written to all the time, and stays the same file.
    pub fn stamp(&self) -> Stamp {
        match self {
            CacheFile::Code(file) => cache::stamp(file.file()),
            CacheFile::Data(_) => None,
        }
    }

    pub(super) fn candidates(&self, page: PageSize) -> Vec<Candidate> {
        match self {
            CacheFile::Code(file) => candidates_of(file, 0, page),
            CacheFile::Data(file) => stretches(&file.stretches(), file.len, page),
        }
    }
}

pub(super) fn candidates_of(file: &ElfFile, bias: u64, page: PageSize) -> Vec<Candidate> {
    let len = file.file().metadata().map_or(0, |m| m.len());
    candidates(&file.headers, bias, len, machine::base_page(), page)
}
