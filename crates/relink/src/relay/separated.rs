// SPDX-License-Identifier: Apache-2.0
//! Copies whose code has huge pages of its own: `hugelift align --separate`.

use super::copy::set_mode;
use super::error::RelayError;
use super::original::Original;
use crate::align;
use crate::loaded::{Loaded, compare};
use crate::separate::proof::{DebugFile, Versions};
use crate::separate::{self, Options, Separated, proof};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::temporary::Temporary;
use hugelift_linux::machine::memory_left_here;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

/// How often the file is in memory while it is separated and proven: the original, the copy and a copy before
/// its offsets are aligned, and the memory of both as the proof computes it.
const COPIES: u64 = 5;

/// The unit in which zeros become a hole.
const BLOCK: usize = 4096;

/// How much longer debug information is in memory than its file: its sections may be compressed.
const UNPACKED: u64 = 3;

/// The debug information of a separated program.
pub struct SeparatedDebug {
    bytes: Vec<u8>,
    /// Whether the program names the file (`.gnu_debuglink`).
    pub linked: bool,
}

impl Original {
    /// Separates the code, and proves that the result does what the file does.
    ///
    /// # Errors
    /// [`RelayError::Inseparable`], [`RelayError::Unproven`], [`RelayError::TooLarge`]
    pub fn separated(&self, page: PageSize, options: Options) -> Result<Separated, RelayError> {
        self.has_memory(0)?;
        let separated = self.unproven(page, options)?;
        self.proven(&separated, None)?;
        Ok(separated)
    }

    /// Separates the code, and moves the addresses in `debug`, its debug information in a file of its own. The
    /// program names the new file, which is called `name`, if it names one now. Both are proven.
    ///
    /// # Errors
    /// Those of [`Original::separated`], and [`RelayError::UnprovenDebug`]
    pub fn separated_with(
        &self,
        debug: &Original,
        name: &OsStr,
        page: PageSize,
        options: Options,
    ) -> Result<(Separated, SeparatedDebug), RelayError> {
        self.has_memory((debug.bytes.len() as u64).saturating_mul(UNPACKED))?;
        let mut separated = self.unproven(page, options)?;
        let inseparable =
            |path: &Original, source| RelayError::Inseparable { path: path.path.clone().into(), source };
        let bytes = separate::separate_debug(&debug.bytes, &self.bytes, &separated)
            .map_err(|source| inseparable(debug, source))?;
        let linked = separated.link(name.as_bytes(), &bytes).map_err(|source| inseparable(self, source))?;
        self.proven(&separated, Some(DebugFile { name: name.as_bytes(), bytes: &bytes }))?;
        let programs = Versions { original: &self.bytes, copy: &separated.bytes };
        let versions = Versions { original: &debug.bytes, copy: &bytes };
        let proof = proof::check_debug(programs, versions, &separated.distances)
            .map_err(|source| RelayError::UnprovenDebug { path: debug.path.clone().into(), source })?;
        let path = &debug.path;
        tracing::debug!(?path, ?proof, "debug information of what was separated");
        Ok((separated, SeparatedDebug { bytes, linked }))
    }

    /// Checks that memory suffices for this file and `more` bytes.
    fn has_memory(&self, more: u64) -> Result<(), RelayError> {
        let bytes = (self.bytes.len() as u64).saturating_add(more).saturating_mul(COPIES);
        let left = memory_left_here();
        if bytes > left {
            return Err(RelayError::TooLarge { path: self.path.clone().into(), bytes, left });
        }
        Ok(())
    }

    fn unproven(&self, page: PageSize, options: Options) -> Result<Separated, RelayError> {
        separate::separate(&self.bytes, page, options)
            .map_err(|source| RelayError::Inseparable { path: self.path.clone().into(), source })
    }

    fn proven(&self, separated: &Separated, debug: Option<DebugFile>) -> Result<(), RelayError> {
        let proof = proof::check_linked(&self.bytes, &separated.bytes, &separated.distances, debug)
            .map_err(|source| RelayError::Unproven { path: self.path.clone().into(), source })?;
        tracing::debug!(path = ?self.path, ?proof, "separated");
        Ok(())
    }

    /// Writes `debug`, made of this file, to the directory of `place`. It is removed when dropped.
    ///
    /// # Errors
    /// [`RelayError`]
    pub fn debug_beside(&self, debug: &SeparatedDebug, place: &Entry) -> Result<Temporary, RelayError> {
        self.written_beside(
            place,
            |out| write_with_holes(&debug.bytes, out),
            |again| self.like(again, &debug.bytes),
        )
    }

    /// Checks that the disk has kept what was written.
    fn like(&self, again: &[u8], written: &[u8]) -> Result<(), RelayError> {
        match again == written {
            true => Ok(()),
            false => Err(RelayError::Unlike { path: self.path.clone().into() }),
        }
    }

    /// Writes a separated copy to the directory of `place`. It is removed when dropped.
    ///
    /// # Errors
    /// [`RelayError`]
    pub fn separated_beside(&self, separated: &Separated, place: &Entry) -> Result<Temporary, RelayError> {
        let check = |again: &[u8]| self.like(again, &separated.bytes);
        let copy = self.written_beside(place, |out| write_with_holes(&separated.bytes, out), check)?;
        // The loader runs without rights of ours. What the original's mode lets others read is no secret here.
        set_mode(&copy, self.meta.mode() & 0o444 | 0o600, place)?;
        Ok(copy)
    }

    /// Lets the file's own loader load the file and its separated copy, and compares their memory.
    ///
    /// # Errors
    /// [`RelayError::Differs`]
    pub fn compared(&self, separated: &Separated, copy: &File) -> Result<Loaded, RelayError> {
        compare(&self.path, copy, &separated.distances)
            .map_err(|source| RelayError::Differs { path: self.path.clone().into(), source })
    }

    /// Returns whether this file is a copy of `other`, re-laid, separated, or neither.
    pub(crate) fn is_like(&self, other: &Original) -> bool {
        align::verify(&other.bytes, &self.bytes).is_ok() || self.is_separated(other)
    }

    /// Returns whether this file is `other`, separated.
    fn is_separated(&self, other: &Original) -> bool {
        let Ok(headers) = Headers::parse(&self.bytes) else { return false };
        // It was separated for the largest page that it is aligned to.
        let page = headers.segments.iter().map(|s| s.align).max().and_then(PageSize::new);
        let again = page.and_then(|page| separate::separate(&other.bytes, page, Options { least: 1 }).ok());
        again.is_some_and(|again| again.bytes == self.bytes)
    }
}

/// Writes bytes to an empty file; blocks of zeros stay holes.
fn write_with_holes(bytes: &[u8], out: &File) -> io::Result<()> {
    let is_hole = |block: &[u8]| block.iter().all(|&b| b == 0);
    let mut at = 0;
    for run in bytes.chunks(BLOCK).collect::<Vec<_>>().chunk_by(|a, b| is_hole(a) == is_hole(b)) {
        let len: usize = run.iter().map(|block| block.len()).sum();
        if let (Some(part), Some(false)) = (bytes.get(at..at + len), run.first().map(|block| is_hole(block)))
        {
            out.write_all_at(part, at as u64)?;
        }
        at += len;
    }
    out.set_len(bytes.len() as u64)
}
