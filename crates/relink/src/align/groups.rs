// SPDX-License-Identifier: Apache-2.0
//! Computes which stretches of a file move together, and where to.
//!
//! A *group* is a stretch of the file that moves as one: a segment with everything in it, a section
//! outside the segments, a header table. Stretches that overlap become one group. Bytes that no header
//! names (a linker's padding) follow the group before them, unless they are zeros.
//!
//! Each group gets the smallest free offset that is not below its old one and is congruent as its
//! members need it. So groups that fit stay, and a second run changes nothing.

use super::pages::{BASE_PAGE, congruent};
use super::places::Move;
use super::refusal::Refusal;
use super::tables::{LE, Tables, has_bytes, names_bytes};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Segment;
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// Where everything goes, and what is appended to the file.
pub(super) struct Plan {
    pub moves: Vec<Move>,
    /// Length of the output.
    pub bytes: u64,
    /// Size and first bytes of the data behind everything that the headers name.
    pub payload: Option<(u64, String)>,
}

/// The shifts that are congruent to `residue` modulo `modulus`, a power of two.
#[derive(Clone, Copy)]
struct Shift {
    modulus: u64,
    residue: u64,
}

impl Shift {
    /// Returns the shifts that are in both. As the moduli are powers of two, one set contains the other
    /// or they have none in common.
    fn and(self, other: Shift) -> Option<Shift> {
        let [coarse, fine] = if self.modulus < other.modulus { [self, other] } else { [other, self] };
        congruent(fine.residue, coarse.residue, coarse.modulus).then_some(fine)
    }

    /// Returns the smallest shift that is at least `least`.
    fn at_least(self, least: u64) -> Option<u64> {
        least.checked_add(self.residue.wrapping_sub(least) & (self.modulus - 1))
    }
}

/// A stretch `start..end` that moves as one.
struct Group {
    start: u64,
    end: u64,
    /// It may be shifted by multiples of this.
    must: u64,
    /// The shifts that bring huge pages, each with the bytes on them.
    wishes: Vec<(u64, Shift)>,
}

impl Group {
    fn new(start: u64, size: u64) -> Group {
        Group { start, end: start + size, must: BASE_PAGE, wishes: vec![] }
    }

    /// Returns the shifts that satisfy as many wishes as are compatible, those with most bytes first.
    fn shift(&self) -> Shift {
        // The start of the file stays where it is.
        let must = if self.start == 0 { 1 << 63 } else { self.must };
        let must = Shift { modulus: must, residue: 0 };
        let mut wishes = self.wishes.clone();
        wishes.sort_by_key(|&(gain, _)| std::cmp::Reverse(gain));
        wishes.iter().fold(must, |all, (_, wish)| all.and(*wish).unwrap_or(all))
    }
}

/// Returns the modulus by which a segment may be shifted without losing what `p_align` promises.
pub(super) fn kept(segment: &Segment) -> u64 {
    let align = segment.align;
    let promised = align.is_power_of_two() && congruent(segment.offset, segment.vaddr, align);
    if promised { align.max(BASE_PAGE) } else { BASE_PAGE }
}

/// Returns everything that the headers name in the file, in groups, by offset.
fn groups(tables: &Tables, wholes: &[u64], page: PageSize) -> Vec<Group> {
    let mut all = vec![Group::new(0, size_of_val(&tables.file) as u64)];
    for (offset, size) in [tables.program_table(), tables.section_table()] {
        all.push(Group::new(offset, size));
    }
    for (segment, &whole) in tables.headers.segments.iter().zip(wholes).filter(|(s, _)| s.filesz > 0) {
        let mut group = Group::new(segment.offset, segment.filesz);
        group.must = kept(segment);
        if whole > 0 {
            let residue = segment.vaddr.wrapping_sub(segment.offset) & (page.bytes() - 1);
            group.wishes.push((whole, Shift { modulus: page.bytes(), residue }));
        }
        all.push(group);
    }
    for program in tables.programs.iter().filter(|p| names_bytes(p)) {
        all.push(Group::new(program.p_offset(LE), program.p_filesz(LE)));
    }
    for section in tables.sections.iter().filter(|s| has_bytes(s)) {
        all.push(Group::new(section.sh_offset(LE), section.sh_size(LE)));
    }
    all.sort_by_key(|g| g.start);
    let mut merged: Vec<Group> = Vec::new();
    for group in all {
        match merged.last_mut() {
            Some(last) if group.start < last.end => {
                last.end = last.end.max(group.end);
                last.must = last.must.max(group.must);
                last.wishes.extend(group.wishes);
            }
            _ => merged.push(group),
        }
    }
    merged
}

/// Computes the offset of every group.
pub(super) fn place(bytes: &[u8], tables: &Tables, wholes: &[u64], page: PageSize) -> Result<Plan, Refusal> {
    let groups = groups(tables, wholes, page);
    let len = bytes.len() as u64;
    let mut moves: Vec<Move> = Vec::new();
    let mut payload = None;
    // The first free byte of the output.
    let mut free = 0;
    for (i, group) in groups.iter().enumerate() {
        let next = groups.get(i + 1).map_or(len, |next| next.start);
        let unclaimed = slice(bytes, group.end, next)?;
        let mut end = group.end;
        if let Some(last) = unclaimed.iter().rposition(|&b| b != 0) {
            end += last as u64 + 1;
            if next == len {
                let from = unclaimed.iter().position(|&b| b != 0).unwrap_or(0);
                let starts = unclaimed[from..].iter().take(8).copied().collect::<Vec<u8>>();
                payload = Some((unclaimed.len() as u64, starts.escape_ascii().to_string()));
            }
        }
        if next == len {
            end = len;
        }
        let least = u64::saturating_sub(free, group.start);
        let shift = group.shift().at_least(least).ok_or(Refusal::TooLarge)?;
        let to = group.start.checked_add(shift).ok_or(Refusal::TooLarge)?;
        free = to
            .checked_add(end - group.start)
            .filter(|&f| i64::try_from(f).is_ok())
            .ok_or(Refusal::TooLarge)?;
        match moves.last_mut() {
            Some(last) if last.to - last.from == shift => last.len = end - last.from,
            _ => moves.push(Move { from: group.start, to, len: end - group.start }),
        }
    }
    Ok(Plan { moves, bytes: free, payload })
}

fn slice(bytes: &[u8], start: u64, end: u64) -> Result<&[u8], Refusal> {
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let len = bytes.len() as u64;
    let short = || Refusal::Short { what: "a program header's piece".into(), end: start.max(end), len };
    range.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(short)
}

/// Returns the new offset of the byte at `offset` of the input. Unclaimed bytes go with those before
/// them.
pub(super) fn moved(moves: &[Move], offset: u64) -> u64 {
    let i = moves.partition_point(|m| m.from <= offset);
    let shift = i.checked_sub(1).and_then(|i| moves.get(i)).map_or(0, |m| m.to - m.from);
    offset.saturating_add(shift)
}
