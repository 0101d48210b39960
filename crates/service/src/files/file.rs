// SPDX-License-Identifier: Apache-2.0
//! A file that is kept: code, or data that programs map.

use hugelift_core::addr::PageSize;
use hugelift_core::elf::ElfError;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{FileReport, Obstacle};
use hugelift_core::printable::Escape as _;
use hugelift_linux::elf::elf_file::{ElfFile, FileError};
use hugelift_pages::pagecache::prime::{self, DataFile, Pace, Primer, Stamp};
use std::fs::File;
use std::path::Path;

/// A file that is kept.
#[derive(Debug)]
pub enum KeptFile {
    /// An ELF file.
    Code(ElfFile),
    /// Any other regular file.
    Data(DataFile),
}

impl KeptFile {
    /// Opens a file.
    ///
    /// # Errors
    /// One line: it cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<KeptFile, String> {
        match ElfFile::open(path) {
            Ok(file) => Ok(KeptFile::Code(file)),
            Err(FileError::Elf { source: ElfError::NotElf(_), .. }) => DataFile::open(path)
                .map(KeptFile::Data)
                .map_err(|error| format!("cannot read {}: {error}", path.escaped())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns its device and inode.
    pub fn id(&self) -> FileId {
        match self {
            KeptFile::Code(file) => file.id,
            KeptFile::Data(file) => file.id,
        }
    }

    /// Returns the path by which it was found.
    pub fn path(&self) -> &Path {
        match self {
            KeptFile::Code(file) => &file.path,
            KeptFile::Data(file) => &file.path,
        }
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        match self {
            KeptFile::Code(file) => file.file(),
            KeptFile::Data(file) => file.file(),
        }
    }

    /// Returns the state that it is in. A data file may be written to all the time, and stays the same file.
    pub fn stamp(&self) -> Stamp {
        match self {
            KeptFile::Code(file) => prime::stamp(file),
            KeptFile::Data(_) => None,
        }
    }

    /// Primes it at a pace.
    pub fn prime(&self, page: PageSize, pace: &mut Pace) -> FileReport {
        match self {
            KeptFile::Code(file) => prime::prime_at(file, page, pace),
            KeptFile::Data(file) => prime::prime_data(file, page, pace),
        }
    }

    /// Primes what of it is in no whole huge page, if that is not so already, and reports it.
    pub fn prime_edges(
        &self,
        edges: &mut Primer,
        page: PageSize,
        pace: &mut Pace,
        report: FileReport,
    ) -> FileReport {
        let edges = match self {
            KeptFile::Code(file) => edges.prime(file, page, Some(pace)),
            KeptFile::Data(file) => edges.prime_data(file, page, Some(pace)),
        };
        FileReport { edges, ..report }
    }

    /// Reports what is huge, and changes nothing.
    pub fn check(&self, page: PageSize) -> FileReport {
        match self {
            KeptFile::Code(file) => prime::check(file, page),
            KeptFile::Data(file) => prime::check_data(file, page),
        }
    }

    /// Reports that nothing of it can be huge, for one reason.
    pub fn blocked(&self, obstacle: &Obstacle) -> FileReport {
        match self {
            KeptFile::Code(file) => prime::blocked(file, obstacle),
            KeptFile::Data(file) => prime::blocked_data(file, obstacle),
        }
    }
}
