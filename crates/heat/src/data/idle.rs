// SPDX-License-Identifier: Apache-2.0
//! Idle page tracking (Documentation/admin-guide/mm/idle_page_tracking.rst in Linux): marks each page frame of a process idle,
//! and reads later which of them still are.
//!
//! The kernel keeps what it knows of these pages for its own use apart, so that nothing is lost for it. Marking and reading
//! take it about a microsecond each for a page or folio, in system calls of ours. The process sets each accessed bit again.

use super::pages::{self, SEARCHED};
use hugelift_core::addr::PageSize;
use hugelift_core::heat::data::areas::{Areas, Piece};
use hugelift_core::heat::data::count::{Seen, count};
use hugelift_core::heat::data::idle::{Flags, State, frame, frames_of, head, seen, words};
use hugelift_core::heat::data::{DataInUse, Method};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
const FLAGS: &str = "/proc/kpageflags";
/// Pages that are watched at most: 16 GB of small ones. What is more is unknown.
const MOST: usize = 4 << 20;
/// Bytes of a word of these files.
const WORD: usize = 8;
/// Words that one read or write takes at most.
const RUN: u64 = 8192;

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel has none.
    #[error("this kernel has no {BITMAP} (CONFIG_IDLE_PAGE_TRACKING)")]
    Lacking,
    /// Only root may use it.
    #[error("{0}: {1}: only root may use it (sudo)")]
    Denied(&'static str, Errno),
    /// The kernel hides which page frames a process has.
    #[error(
        "/proc/PID/pagemap shows no page frames: that needs CAP_SYS_ADMIN (root, outside of a container)"
    )]
    Hidden,
    /// The process has no data in memory.
    #[error("the process has no data in memory")]
    NoData,
    /// Anything else.
    #[error("{0}: {1}")]
    Os(&'static str, io::Error),
}

/// The files of the kernel that it takes.
#[derive(Debug)]
pub struct Files {
    pagemap: File,
    flags: File,
    bitmap: File,
}

impl Files {
    /// Opens them for a process.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn of(process: Process) -> Result<Files, Refused> {
        let bitmap = open(BITMAP, true)?;
        let pagemap = pages::open(process).map_err(|error| refused("/proc/PID/pagemap", error))?;
        Ok(Files { pagemap, flags: open(FLAGS, false)?, bitmap })
    }
}

fn open(path: &'static str, write: bool) -> Result<File, Refused> {
    let opened = OpenOptions::new().read(true).write(write).open(Path::new(path));
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if path == BITMAP => Refused::Lacking,
        _ => refused(path, error),
    })
}

fn refused(path: &'static str, error: io::Error) -> Refused {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS) => Refused::Denied(path, errno),
        _ => Refused::Os(path, error),
    }
}

/// A process whose page frames are marked.
#[derive(Debug)]
pub struct Marked {
    files: Files,
    span: PageSize,
    /// The pieces, with their entries; none if there were too many.
    pieces: Vec<(Piece, Vec<u64>)>,
    /// All page frames, sorted, and for each the first one of its folio.
    frames: Vec<u64>,
    heads: Vec<u64>,
    /// The heads that are marked, sorted.
    marked: Vec<u64>,
}

impl Marked {
    /// Marks all page frames of the data.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(files: Files, areas: &Areas, span: PageSize) -> Result<Marked, Refused> {
        let (mut pieces, mut frames) = (Vec::new(), Vec::new());
        for piece in areas.pieces(span, SEARCHED) {
            let entries = pagemap::entries(&files.pagemap, piece.range);
            let entries = entries.map_err(|error| refused("/proc/PID/pagemap", error))?;
            let present = entries.iter().filter_map(|entry| frame(*entry));
            if frames.len() < MOST {
                frames.extend(present);
                pieces.push((piece, entries));
            } else if present.count() > 0 {
                pieces.push((piece, Vec::new()));
            }
        }
        if frames.is_empty() {
            return Err(Refused::NoData);
        }
        frames.sort_unstable();
        frames.dedup();
        if frames == [0] {
            return Err(Refused::Hidden);
        }
        let flags = |frames: &[u64]| values(&files.flags, frames).map_err(|error| refused(FLAGS, error));
        let heads = heads(&frames, &flags(&frames)?, |frame| Some(Flags(*flags(&[frame]).ok()?.first()?)));
        let mut marked = heads.clone();
        marked.sort_unstable();
        marked.dedup();
        let of_heads = flags(&marked)?;
        let mut of_heads = of_heads.into_iter();
        marked.retain(|_| of_heads.next().is_some_and(|flags| Flags(flags).is_markable()));
        drop_last(&files.bitmap, &mut marked).map_err(|error| refused(BITMAP, error))?;
        mark(&files.bitmap, &marked).map_err(|error| refused(BITMAP, error))?;
        // What was not marked, and could be, was touched at once.
        let idle = idle(&files.bitmap, &marked).map_err(|error| refused(BITMAP, error))?;
        let is_known = |head: &u64| {
            idle.binary_search(head).is_ok()
                || flags(&[*head]).is_ok_and(|f| f.first().is_some_and(|f| Flags(*f).is_markable()))
        };
        marked.retain(is_known);
        Ok(Marked { files, span, pieces, frames, heads, marked })
    }

    /// Returns what was touched since.
    ///
    /// # Errors
    /// The files cannot be read; the text says why.
    pub fn finish(self, areas: &Areas) -> Result<DataInUse, String> {
        let text = |error: io::Error| error.to_string();
        let idle = idle(&self.files.bitmap, &self.marked).map_err(text)?;
        let state = |frame: u64| {
            let head = self.frames.binary_search(&frame).ok().and_then(|i| self.heads.get(i));
            match head.filter(|head| self.marked.binary_search(head).is_ok()) {
                None => State::Unknown,
                Some(head) if idle.binary_search(head).is_ok() => State::Idle,
                Some(_) => State::Touched,
            }
        };
        let mut all: Vec<(&Piece, Seen)> = Vec::new();
        let mut is_any = false;
        for (piece, before) in &self.pieces {
            let after = pagemap::entries(&self.files.pagemap, piece.range).map_err(text)?;
            is_any |= !after.is_empty();
            let page = base_page().bytes();
            let seen = match before.is_empty() {
                false => seen(before, &after, page, state),
                true => Seen { watched: 0, touched: 0, ..seen(&[], &after, page, state) },
            };
            all.push((piece, seen));
        }
        // The file is empty once the process has released its memory.
        match is_any {
            true => Ok(count(areas, Method::IdlePageTracking, Some(self.span), all)),
            false => Err("the process has released its memory".into()),
        }
    }
}

/// Returns the first frame of the folio of each frame; the frame itself if its folio was split meanwhile.
fn heads(frames: &[u64], flags: &[u64], read: impl Fn(u64) -> Option<Flags>) -> Vec<u64> {
    let mut heads: Vec<u64> = Vec::with_capacity(frames.len());
    for (i, (frame, flags)) in frames.iter().zip(flags).enumerate() {
        let follows = i > 0 && frames[i - 1].checked_add(1) == Some(*frame);
        heads.push(match Flags(*flags).is_tail() {
            false => *frame,
            // What is before a further frame is of the same folio.
            true if follows => heads[i - 1],
            true => head(*frame, &read).unwrap_or(*frame),
        });
    }
    heads
}

/// Calls `work` with each run of adjacent numbers: the first, and how many.
fn runs(
    numbers: impl IntoIterator<Item = u64>,
    mut work: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut run: Option<(u64, u64)> = None;
    for number in numbers {
        run = match run {
            Some((first, count)) if first.checked_add(count) == Some(number) && count < RUN => {
                Some((first, count + 1))
            }
            other => {
                other.map_or(Ok(()), |(first, count)| work(first, count))?;
                Some((number, 1))
            }
        };
    }
    run.map_or(Ok(()), |(first, count)| work(first, count))
}

/// Reads the words with these sorted numbers from a file. What the file does not reach is 0.
fn values(file: &File, numbers: &[u64]) -> io::Result<Vec<u64>> {
    let mut all = Vec::with_capacity(numbers.len());
    runs(numbers.iter().copied(), |first, count| {
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(0) * WORD];
        let mut got = 0;
        while got < bytes.len() {
            match file
                .read_at(&mut bytes[got..], first.saturating_mul(WORD as u64).saturating_add(got as u64))?
            {
                0 => break,
                more => got += more,
            }
        }
        let (words, _) = bytes.as_chunks::<WORD>();
        all.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        Ok(())
    })?;
    Ok(all)
}

/// Drops the frames of the bitmap's last word, where the machine has fewer than 64 of them: the kernel does not tell that
/// word (mm/page_idle.c of Linux 6.12).
fn drop_last(bitmap: &File, frames: &mut Vec<u64>) -> io::Result<()> {
    if let Some((last, _)) = frames.last().and_then(|frame| words(&[*frame]).pop()) {
        let got = bitmap.read_at(&mut [0; WORD], last.saturating_mul(WORD as u64))?;
        if got < WORD {
            let first = frames_of(last, 1).next().unwrap_or(0);
            frames.retain(|frame| *frame < first);
        }
    }
    Ok(())
}

/// Marks frames, which are sorted.
fn mark(bitmap: &File, frames: &[u64]) -> io::Result<()> {
    let words = words(frames);
    let mut bits = words.iter().map(|(_, bits)| *bits);
    runs(words.iter().map(|(word, _)| *word), |first, count| {
        let bytes: Vec<u8> =
            bits.by_ref().take(usize::try_from(count).unwrap_or(0)).flat_map(u64::to_ne_bytes).collect();
        bitmap.write_all_at(&bytes, first.saturating_mul(WORD as u64))
    })
}

/// Returns those of the sorted frames that are marked still.
fn idle(bitmap: &File, frames: &[u64]) -> io::Result<Vec<u64>> {
    let words = words(frames);
    let numbers: Vec<u64> = words.iter().map(|(word, _)| *word).collect();
    let now = values(bitmap, &numbers)?;
    let both = words.into_iter().zip(now).map(|((word, bits), now)| (word, bits & now));
    Ok(both.flat_map(|(word, bits)| frames_of(word, bits)).collect())
}

#[cfg(test)]
mod tests;
