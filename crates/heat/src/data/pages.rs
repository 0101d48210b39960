// SPDX-License-Identifier: Apache-2.0
//! Which pages of the data of a process are in memory (`/proc/PID/pagemap`).

use hugelift_core::addr::PageSize;
use hugelift_core::heat::data::areas::{Areas, Piece};
use hugelift_core::heat::data::idle::frame;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::io;

/// Address space that is searched for pages at most. Programs reserve much more than they use.
pub const SEARCHED: u64 = 256 << 30;

/// A piece with bytes in memory.
pub type Resident = (Piece, u64);

/// Opens the list of the pages of a process.
///
/// # Errors
/// open(2)
pub fn open(process: Process) -> io::Result<File> {
    File::open(process.path("pagemap"))
}

/// Returns the pieces of which something is in memory, with its bytes.
///
/// # Errors
/// open(2), pread(2)
pub fn resident(process: Process, areas: &Areas, span: PageSize) -> io::Result<Vec<Resident>> {
    let (pagemap, page) = (open(process)?, base_page().bytes());
    let mut all = Vec::new();
    for piece in areas.pieces(span, SEARCHED) {
        let entries = pagemap::entries(&pagemap, piece.range)?;
        let present = entries.into_iter().filter(|entry| frame(*entry).is_some()).count() as u64;
        if present > 0 {
            all.push((piece, present * page));
        }
    }
    Ok(all)
}

/// Makes spans larger until there are at most `most` pieces: those of one place in one span become one. Returns the size of
/// the spans, too.
pub fn coarser(mut all: Vec<Resident>, mut span: PageSize, most: usize) -> (Vec<Resident>, PageSize) {
    while all.len() > most {
        // More pieces than places in all the address space cannot be.
        let Some(larger) = PageSize::new(span.bytes().saturating_mul(2)) else { break };
        span = larger;
        let before = std::mem::take(&mut all);
        for (piece, bytes) in before {
            match all.last_mut() {
                Some((last, sum)) if last.place == piece.place && is_one(last, &piece, span) => {
                    last.range.end = piece.range.end;
                    *sum += bytes;
                }
                _ => all.push((piece, bytes)),
            }
        }
        if span.bytes() >= 1 << 46 {
            all.truncate(most);
        }
    }
    (all, span)
}

fn is_one(first: &Piece, second: &Piece, span: PageSize) -> bool {
    first.range.start.align_down(span) == second.range.start.align_down(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::{Addr, Range};

    const MB2: u64 = 2 << 20;

    fn piece(n: u64, place: usize) -> Resident {
        (Piece { range: Range { start: Addr(n * MB2), end: Addr((n + 1) * MB2) }, place }, 4096)
    }

    #[test]
    fn issue_31_2_many_pieces_become_few() {
        let all: Vec<Resident> = (0..1000).map(|n| piece(n, usize::from(n >= 500))).collect();
        let (few, span) = coarser(all.clone(), PageSize::MB2, 300);
        assert_eq!((few.len(), span.bytes()), (250, 4 * MB2));
        assert_eq!(few.iter().map(|(_, bytes)| bytes).sum::<u64>(), 1000 * 4096);
        assert!(few.iter().all(|(piece, _)| piece.range.len() <= span.bytes()));
        assert_eq!(coarser(all.clone(), PageSize::MB2, 1000), (all, PageSize::MB2));
    }

    #[test]
    fn issue_31_2_places_that_alternate_stay_apart() {
        let all: Vec<Resident> = (0..100).map(|n| piece(n, n as usize % 2)).collect();
        assert_eq!(coarser(all, PageSize::MB2, 30).0.len(), 30);
    }
}
