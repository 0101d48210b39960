// SPDX-License-Identifier: Apache-2.0
//! Checks that one file is another one re-laid, from the headers and bytes of both and independent of
//! the code that did it.

use super::pages::{BASE_PAGE, congruent};
use super::refusal::Refusal;
use super::tables::{LE, Program, Section, Tables, has_bytes, names_bytes};
use object::elf;
use object::pod::bytes_of;
use object::read::elf::{ProgramHeader as _, SectionHeader as _};

/// A difference between two files beyond their layout.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Difference {
    /// One of them cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Refusal),
    /// A field of a header, or the number of them.
    #[error("{0} is not the same")]
    Header(String),
    /// Code or data.
    #[error("the bytes of {0} are not the same")]
    Bytes(String),
    /// No loader would accept it.
    #[error("{0} is not aligned as its p_align states")]
    Alignment(String),
}

/// Compares everything but the offsets in the file: all other header fields, and the bytes of each
/// segment, section and other piece that a program header names. The header tables, which segments may
/// contain, are compared as tables.
///
/// # Errors
/// Returns the first [`Difference`].
pub fn verify(input: &[u8], output: &[u8]) -> Result<(), Difference> {
    let (a, b) = (Tables::parse(input)?, Tables::parse(output)?);
    let header = |what: String| Err(Difference::Header(what));
    let mut file = a.file;
    file.e_phoff = b.file.e_phoff;
    file.e_shoff = b.file.e_shoff;
    if bytes_of(&file) != bytes_of(&b.file) {
        return header("the file header".into());
    }
    if (a.programs.len(), a.sections.len()) != (b.programs.len(), b.sections.len()) {
        return header("the number of program headers or sections".into());
    }
    let (left, right) = (Side::new(input, &a), Side::new(output, &b));
    for (i, (p, q)) in a.programs.iter().zip(&b.programs).enumerate() {
        let what = || format!("program header {i}");
        if !same_program(p, q) {
            return header(what());
        }
        if p.p_type(LE) == elf::PT_LOAD && p.p_memsz(LE) > 0 && !aligned(p, q) {
            return Err(Difference::Alignment(what()));
        }
        let in_file = names_bytes(p) || p.p_type(LE) == elf::PT_LOAD;
        if in_file && !left.same(p.p_offset(LE), &right, q.p_offset(LE), p.p_filesz(LE)) {
            return Err(Difference::Bytes(what()));
        }
    }
    for (i, (s, t)) in a.sections.iter().zip(&b.sections).enumerate() {
        let what = || format!("section {i}");
        let moved = Section { sh_offset: t.sh_offset, ..*s };
        if bytes_of(&moved) != bytes_of(t) {
            return header(what());
        }
        if has_bytes(s) && !left.same(s.sh_offset(LE), &right, t.sh_offset(LE), s.sh_size(LE)) {
            return Err(Difference::Bytes(what()));
        }
    }
    Ok(())
}

fn same_program(p: &Program, q: &Program) -> bool {
    let mut moved = *p;
    moved.p_offset = q.p_offset;
    if p.p_type(LE) == elf::PT_LOAD {
        moved.p_align = q.p_align;
    }
    bytes_of(&moved) == bytes_of(q)
}

/// Returns whether `q` is aligned as its own `p_align` and that of `p` state.
fn aligned(p: &Program, q: &Program) -> bool {
    let (align, vaddr) = (q.p_align(LE), q.p_vaddr(LE));
    let holds = |at: u64, align: u64| align < 2 || congruent(at, vaddr, align);
    let power = |align: u64| align < 2 || align.is_power_of_two();
    // An alignment that the input violates need not hold in the output.
    let broken = !power(p.p_align(LE)) || !holds(p.p_offset(LE), p.p_align(LE));
    let mapped = q.p_filesz(LE) == 0 || congruent(q.p_offset(LE), vaddr, BASE_PAGE);
    align >= p.p_align(LE) && mapped && (broken || power(align) && holds(q.p_offset(LE), align))
}

/// A file and where its header tables lie in it.
struct Side<'a> {
    bytes: &'a [u8],
    /// (offset, size)
    tables: [(u64, u64); 3],
}

impl<'a> Side<'a> {
    fn new(bytes: &'a [u8], tables: &Tables) -> Side<'a> {
        let file = (0, size_of_val(&tables.file) as u64);
        Side { bytes, tables: [file, tables.program_table(), tables.section_table()] }
    }

    /// Returns whether `size` bytes at `at` are the same as those at `there` in the other file. Where
    /// this file has a header table, the other must have it at the same place of the stretch.
    fn same(&self, at: u64, other: &Side, there: u64, size: u64) -> bool {
        let skip = self.holes(at, size);
        if skip != other.holes(there, size) {
            return false;
        }
        let mut from = 0;
        for (start, end) in skip.into_iter().chain([(size, size)]) {
            if from < start {
                let mine = self.piece(at, from, start);
                if mine.is_none() || mine != other.piece(there, from, start) {
                    return false;
                }
            }
            from = from.max(end);
        }
        true
    }

    /// Returns the header tables within a stretch, as offsets from its start.
    fn holes(&self, at: u64, size: u64) -> Vec<(u64, u64)> {
        let inside = |&(start, len): &(u64, u64)| {
            let from = start.max(at);
            let to = start.saturating_add(len).min(at.saturating_add(size));
            (from < to).then(|| (from - at, to - at))
        };
        let mut holes: Vec<_> = self.tables.iter().filter_map(inside).collect();
        holes.sort_unstable();
        holes
    }

    /// Returns the bytes `from..to` of the stretch at `at`.
    fn piece(&self, at: u64, from: u64, to: u64) -> Option<&'a [u8]> {
        let [start, end] = [from, to].map(|n| usize::try_from(at.checked_add(n)?).ok());
        self.bytes.get(start?..end?)
    }
}
