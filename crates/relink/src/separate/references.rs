// SPDX-License-Identifier: Apache-2.0
//! Finds the references of code to what lies before it, relative to the instruction.
//!
//! On x86-64 the code is decoded, from the edge of each function. Code may contain data. Behind data, decoding may
//! find wrong instructions for a while. So all bytes are searched for displacements to the ELF header as well,
//! whether an instruction was decoded there or not.

use super::original::slice;
use super::refusal::Refusal;
use super::{hidden, names};
use crate::align::tables::{LE, Section, Tables, has_bytes, in_memory};
use gimli::{BaseAddresses, CieOrFde, EhFrame, UnwindSection as _};
use hugelift_core::addr::Addr;
use hugelift_core::elf::Machine;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use object::elf;
use object::read::elf::SectionHeader as _;

/// One reference relative to an instruction of x86-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reference {
    /// Stated address of the instruction.
    pub at: u64,
    /// Stated address of the displacement.
    pub field: u64,
    /// Bytes of the displacement.
    width: usize,
    /// What it refers to.
    pub to: u64,
    /// A jump or a call.
    branch: bool,
}

/// What decoding found.
#[derive(Default)]
struct Found {
    /// By the address of the displacement.
    references: Vec<Reference>,
    /// Ranges of code, ascending, that hold bytes that are no instruction.
    unclean: Vec<(u64, u64)>,
}

impl Found {
    /// Returns the reference whose displacement lies at `field`.
    fn reference(&self, field: u64) -> Option<&Reference> {
        self.references.get(self.references.binary_search_by_key(&field, |r| r.field).ok()?)
    }

    fn is_clean(&self, at: u64) -> bool {
        let behind = self.unclean.partition_point(|&(start, _)| start <= at);
        let before = behind.checked_sub(1).and_then(|i| self.unclean.get(i));
        before.is_none_or(|&(_, end)| at >= end)
    }
}

/// Bytes of the ELF header.
const HEADER: u64 = 64;

/// Returns the references of code to what lies below `end`. All of them can be written anew.
///
/// # Errors
/// [`Refusal::Reference`], if a reference cannot be written anew, or if its kind is unknown.
pub(super) fn to_front(bytes: &[u8], tables: &Tables, end: u64) -> Result<Vec<Reference>, Refusal> {
    if let Some((at, to)) = hidden::to_front(bytes, tables, end) {
        return Err(Refusal::Reference { at: Addr(at), to: Addr(to) });
    }
    if tables.headers.machine == Machine::AArch64 {
        return aarch64(bytes, tables, &[(0, end)]).map(|()| Vec::new());
    }
    let found = decode(bytes, tables, end);
    let refused = |at, to| Err(Refusal::Reference { at: Addr(at), to: Addr(to) });
    for (at, to) in displacements(bytes, tables, &hidden::headers(tables)) {
        if found.reference(at).is_none() && !found.is_clean(at) {
            return refused(at, to);
        }
    }
    let names = names::linker_symbols(bytes, tables, end);
    // A jump to the ELF header stands for a missing function: the code tests for that before it jumps.
    let real = |r: &Reference| !(r.branch && r.to < HEADER);
    let references: Vec<Reference> = found.references.iter().copied().filter(real).collect();
    for r in &references {
        // An address without a name may be that of an array behind the code, less a constant. The index makes up for
        // the constant.
        let of_header = |to: u64| if to < HEADER { 0 } else { to };
        let named = names.binary_search(&of_header(r.to)).is_ok();
        if !named || r.width != 4 || !found.is_clean(r.at) {
            return refused(r.at, r.to);
        }
    }
    Ok(references)
}

/// Checks that nothing refers to the ELF header or the program headers.
///
/// # Errors
/// [`Refusal::OwnHeader`]
pub(super) fn to_header(bytes: &[u8], tables: &Tables) -> Result<(), Refusal> {
    if let Some((at, _)) = hidden::to_headers(bytes, tables) {
        return Err(Refusal::OwnHeader { at: Addr(at) });
    }
    let headers = hidden::headers(tables);
    if tables.headers.machine == Machine::AArch64 {
        return aarch64(bytes, tables, &headers);
    }
    let suspects = displacements(bytes, tables, &headers);
    if suspects.is_empty() {
        return Ok(());
    }
    let end = headers.iter().map(|range| range.1).max().unwrap_or(HEADER);
    let found = decode(bytes, tables, end);
    for (at, _) in suspects {
        let harmless = found.reference(at).map_or(found.is_clean(at), |r| r.branch);
        if !harmless {
            return Err(Refusal::OwnHeader { at: Addr(at) });
        }
    }
    Ok(())
}

/// Returns the bytes of all executable sections that lie in memory, with their addresses, ascending. What lies in
/// two of them is in the first alone.
fn code<'a>(bytes: &'a [u8], tables: &'a Tables) -> Vec<(u64, &'a [u8])> {
    let executable =
        |s: &&Section| in_memory(s) && has_bytes(s) && s.sh_flags(LE).0 & elf::SHF_EXECINSTR.0 != 0;
    let sections = tables.sections.iter().filter(executable);
    let mut sections: Vec<(u64, &[u8])> = sections
        .filter_map(|s| Some((s.sh_addr(LE), slice(bytes, s.sh_offset(LE), s.sh_size(LE))?)))
        .collect();
    sections.sort_by_key(|&(address, code)| (address, std::cmp::Reverse(code.len())));
    let mut behind = 0;
    let mut apart = Vec::with_capacity(sections.len());
    for (address, code) in sections {
        let seen = usize::try_from(behind.max(address) - address).unwrap_or(usize::MAX);
        if let Some(rest) = code.get(seen..).filter(|rest| !rest.is_empty()) {
            let start = address.saturating_add(seen as u64);
            apart.push((start, rest));
            behind = start.saturating_add(rest.len() as u64);
        }
    }
    apart
}

/// Returns the edges of functions that the unwinder knows, ascending. Between two of them lies code alone, or
/// no function.
fn edges(bytes: &[u8], tables: &Tables) -> Vec<u64> {
    let Some(section) = tables.sections.iter().find(|s| tables.section_name(bytes, s) == ".eh_frame") else {
        return Vec::new();
    };
    let frames = slice(bytes, section.sh_offset(LE), section.sh_size(LE)).unwrap_or_default();
    let frames = EhFrame::new(frames, gimli::LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.sh_addr(LE));
    let mut entries = frames.entries(&bases);
    let mut edges = Vec::new();
    // A damaged table only gives fewer edges.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(fde) = partial.parse(|_, bases, offset| frames.cie_from_offset(bases, offset)) {
            edges.extend([fde.initial_address(), fde.initial_address().wrapping_add(fde.len())]);
        }
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// Decodes the code, from each edge of a function anew. Returns the references to what lies below `end`.
fn decode(bytes: &[u8], tables: &Tables, end: u64) -> Found {
    let mut found = Found::default();
    let edges = edges(bytes, tables);
    for (address, code) in code(bytes, tables) {
        let from = edges.partition_point(|&edge| edge <= address);
        let mut at = 0;
        for edge in edges.get(from..).unwrap_or_default().iter().copied().chain([u64::MAX]) {
            let to = usize::try_from(edge - address).unwrap_or(usize::MAX).min(code.len());
            let start = address.wrapping_add(at as u64);
            if let Some(piece) = code.get(at..to).filter(|piece| !piece.is_empty()) {
                decode_piece(piece, start, end, &mut found);
            }
            at = to;
            if at == code.len() {
                break;
            }
        }
    }
    found.references.sort_unstable_by_key(|r| r.field);
    found
}

fn decode_piece(code: &[u8], address: u64, end: u64, found: &mut Found) {
    let mut clean = true;
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let start = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            clean = false;
            let next = start + 1;
            if decoder.set_position(next).is_err() {
                break;
            }
            decoder.set_ip(address.wrapping_add(next as u64));
            continue;
        }
        let branch = matches!(instruction.op0_kind(), OpKind::NearBranch64);
        let to = match branch {
            true => instruction.near_branch64(),
            false if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
            false => continue,
        };
        if to >= end {
            continue;
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let (inside, width) = match branch {
            true => (offsets.immediate_offset(), offsets.immediate_size()),
            false => (offsets.displacement_offset(), offsets.displacement_size()),
        };
        let at = instruction.ip();
        let field = at.wrapping_add(inside as u64);
        found.references.push(Reference { at, field, width, to, branch });
    }
    if !clean {
        found.unclean.push((address, address.saturating_add(code.len() as u64)));
    }
}

/// Returns all places in executable segments where four bytes would be a displacement to one of the header
/// tables, and what they would refer to.
fn displacements(bytes: &[u8], tables: &Tables, headers: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let last = headers.iter().map(|range| range.1).max().unwrap_or(0);
    for segment in tables.headers.segments.iter().filter(|s| s.prot.exec) {
        let code = slice(bytes, segment.offset, segment.filesz).unwrap_or_default();
        for (word, at) in code.windows(4).zip(segment.vaddr..) {
            let word = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let next = at.wrapping_add(4).wrapping_add_signed(word.into());
            // An immediate operand may follow the displacement.
            let ends = [0, 1, 2, 4].map(|immediate| next.wrapping_add(immediate));
            if let Some(to) = ends.into_iter().find(|&to| to < last && hidden::holds(headers, to)) {
                found.push((at, to));
            }
        }
    }
    found
}

/// Checks that no code of AArch64 refers to what lies in one of the ranges.
///
/// The instructions are 4 bytes long, and seven kinds refer to addresses (Arm ARM, C4.1, "PC-rel. addressing",
/// "Load register (literal)", "Branches"), so no crate is needed to decode them. Branches are not checked:
/// none goes to what is no code.
fn aarch64(bytes: &[u8], tables: &Tables, ranges: &[(u64, u64)]) -> Result<(), Refusal> {
    for (address, code) in code(bytes, tables) {
        let words = code.as_chunks::<4>().0;
        for (index, at) in (0..words.len()).zip((address..).step_by(4)) {
            let Some(word) = words.get(index).map(|word| u32::from_le_bytes(*word)) else { break };
            let (to, size) = match word {
                // adr
                _ if word & 0x9f00_0000 == 0x1000_0000 => (at.wrapping_add_signed(immediate(word)), 1),
                // adrp: the page; another instruction adds the rest.
                _ if word & 0x9f00_0000 == 0x9000_0000 => {
                    let page = (at & !0xfff).wrapping_add_signed(immediate(word) << 12);
                    match added(words.get(index + 1..).unwrap_or_default(), word & 31) {
                        Some(rest) => (page.wrapping_add(rest), 1),
                        None => (page, 0x1000),
                    }
                }
                // ldr, ldrsw, prfm (literal)
                _ if word & 0x3b00_0000 == 0x1800_0000 => {
                    let words = i64::from((word << 8) as i32 >> 13);
                    (at.wrapping_add_signed(words * 4), 8)
                }
                _ => continue,
            };
            let last = to.saturating_add(size);
            if ranges.iter().any(|&(start, end)| start < last && to < end) {
                return Err(Refusal::Reference { at: Addr(at), to: Addr(to) });
            }
        }
    }
    Ok(())
}

/// Returns what the code adds to a register that holds a page, if the first instruction that names the register is an
/// add which overwrites it. Nothing else can use the page then: the instructions before are neither branches nor are they
/// unknown.
fn added(code: &[[u8; 4]], register: u32) -> Option<u64> {
    for word in code.iter().take(REACH) {
        let word = u32::from_le_bytes(*word);
        let fields = [word & 31, word >> 5 & 31, word >> 10 & 31, word >> 16 & 31];
        match word {
            // add Xd, Xn, #immediate, of the same register. A shifted one may be the first of two.
            _ if word & 0xffc0_0000 == 0x9100_0000 && fields[0] == register && fields[1] == register => {
                return Some(u64::from(word >> 10 & 0xfff));
            }
            _ if names_its_registers(word) => {
                if fields.contains(&register) {
                    return None;
                }
            }
            _ => return None,
        }
    }
    None
}

/// Returns whether an instruction uses no register but those in its four fields, and does not branch: data processing,
/// and loads and stores with an offset or of pairs (Arm ARM, C4.1). Some atomic ones use the register behind a named one.
fn names_its_registers(word: u32) -> bool {
    matches!(word >> 25 & 15, 0b1000 | 0b1001 | 0b0101 | 0b1101 | 0b0111 | 0b1111)
        || word & 0x3b00_0000 == 0x3900_0000
        || word & 0x3a00_0000 == 0x2800_0000
}

/// How many instructions may lie between an adrp and its add: compilers put some of other work there.
const REACH: usize = 16;

/// Returns the signed immediate of adr and adrp: 19 high bits at bit 5, 2 low bits at bit 29.
fn immediate(word: u32) -> i64 {
    let high = i64::from((word << 8) as i32 >> 13);
    high << 2 | i64::from(word >> 29 & 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_byte_of_a_page_is_meant() {
        const ADD: u32 = 0x913e_0294; // add x20, x20, #0xf80
        let cases: [(&[u32], Option<u64>); 9] = [
            (&[ADD], Some(0xf80)),
            (&[0x9140_0694, ADD], None), // add x20, x20, #1, lsl #12
            (&[0xaa02_03e1, 0xf940_0041, ADD], Some(0xf80)), // mov x1, x2; ldr x1, [x2]
            (&[0x9400_0000, ADD], None), // bl
            (&[0x5400_0040, ADD], None), // b.eq
            (&[0xf940_0280, ADD], None), // ldr x0, [x20]
            (&[0x9100_2280, ADD], None), // add x0, x20, #8
            (&[0x4832_7c00, ADD], None), // casp: uses x19 too, which it does not name
            (&[], None),
        ];
        for (words, byte) in cases {
            let code: Vec<[u8; 4]> = words.iter().map(|word| word.to_le_bytes()).collect();
            assert_eq!(added(&code, 20), byte, "{words:x?}");
        }
    }
}
