// SPDX-License-Identifier: Apache-2.0
//! Finds the references of instructions to parts that move by another distance. Refuses a part if others may refer
//! to it without a record.

use super::file::{Program, Section, u32_at};
use super::flaw::Flaw;
use super::hidden::{self, Numbers};
use super::pair::{Pair, Place};
use super::symbols::{SYMBOL, is_table, linker_defines, symbol};
use super::unwind;
use gimli::{CieOrFde, EhFrame, LittleEndian, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use object::elf;

pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let numbers = Numbers::new(pair);
    if !pair.uniform() {
        closed(pair)?;
    } else if hidden::headers(pair).is_empty() {
        return Ok(());
    }
    let starts = starts(pair)?;
    let code = |s: &&Section| s.allocated() && s.has_bytes() && s.flags & elf::SHF_EXECINSTR.0 != 0;
    let mut ranges: Vec<(u64, u64)> =
        pair.from.sections.iter().filter(code).map(|s| (s.addr, s.end())).collect();
    ranges.sort_unstable();
    let mut behind = 0;
    for (start, end) in ranges {
        // What lies in two sections is decoded once.
        let mut from = start.max(behind);
        behind = behind.max(end);
        let first = starts.partition_point(|at| *at <= from);
        let last = starts.partition_point(|at| *at < end).max(first);
        for to in starts.get(first..last).unwrap_or_default().iter().copied().chain([end]) {
            if from >= to {
                continue;
            }
            if pair.from.machine() == elf::EM_AARCH64 {
                aarch64(pair, &numbers, from, to)?;
            } else {
                x86_64(pair, &numbers, from, to)?;
            }
            from = to;
        }
    }
    Ok(())
}

/// Checks each section that does not move with the code: all references to such a section must be of a known kind.
fn closed(pair: &Pair) -> Result<(), Flaw> {
    let by = |addr: u64| pair.distances.part(addr).map(|part| part.by);
    let mut codes = pair.from.loads.iter().filter(|l| l.executable()).map(|l| by(l.vaddr));
    let main = codes.next().flatten();
    if codes.any(|by| by != main) {
        return Err(Flaw::Undecided("code moves by different distances".into()));
    }
    for section in pair.from.sections.iter().filter(|s| s.allocated() && s.size > 0) {
        if section.flags & elf::SHF_TLS.0 != 0 && section.kind == elf::SHT_NOBITS.0 {
            continue;
        }
        if by(section.addr) != main && !hidden::is_known(pair, section) {
            let what =
                format!("section {} does not move with the code, and others may refer to it", section.says());
            return Err(Flaw::Undecided(what));
        }
    }
    // What is in no section is in no table.
    let mut covered: Vec<(u64, u64)> =
        pair.from.sections.iter().filter(|s| s.allocated()).map(|s| (s.addr, s.end())).collect();
    covered.extend(hidden::headers(pair).iter().map(|range| (range.start, range.end)));
    covered.sort_unstable();
    for load in pair.from.loads.iter().filter(|l| by(l.vaddr) != main) {
        let mut at = load.vaddr;
        let end = load.file_end();
        for &(start, behind) in covered.iter().chain([&(end, end)]) {
            let start = start.min(end);
            if at < start {
                let bytes = pair.from.memory(at, start - at);
                let other = bytes.map(|bytes| bytes.iter().position(|b| *b != 0));
                if other != Some(None) {
                    let at = at + other.flatten().unwrap_or(0) as u64;
                    return Err(Flaw::Undecided(format!("the byte at {at:#x} is in no section")));
                }
            }
            at = at.max(behind);
        }
    }
    Ok(())
}

/// Returns the addresses where instructions begin, sorted: of functions with a frame or a symbol.
fn starts(pair: &Pair) -> Result<Vec<u64>, Flaw> {
    let mut all = vec![pair.from.header.e_entry.get(object::LittleEndian)];
    for table in pair.from.sections.iter().filter(|s| is_table(s)) {
        let bytes = pair.from.contents(table);
        let symbols = (0..bytes.len() / SYMBOL).filter_map(|i| symbol(bytes, i));
        let functions =
            symbols.filter(|s| s.has_address() && matches!(s.kind(), elf::STT_FUNC | elf::STT_GNU_IFUNC));
        all.extend(functions.map(|s| s.value));
    }
    if let Some(section) = unwind::frames(&pair.from) {
        let bytes = pair.from.contents(section);
        let mut bases = gimli::BaseAddresses::default().set_eh_frame(section.addr);
        if let Some(header) = pair.from.program(elf::PT_GNU_EH_FRAME) {
            bases = bases.set_eh_frame_hdr(header.vaddr);
        }
        let frames = EhFrame::new(bytes, LittleEndian);
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(entry) = entry
                && let Ok(fde) = entry.parse(EhFrame::cie_from_offset)
            {
                all.push(fde.initial_address());
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Returns by how much the distance from an instruction at `at` to `target` grows.
fn change(pair: &Pair, at: u64, target: u64) -> Result<u64, Flaw> {
    let what = "what an instruction refers to";
    let to = pair.moved(target, what)?.wrapping_sub(target);
    Ok(to.wrapping_sub(pair.moved(at, what)?.wrapping_sub(at)))
}

/// Adds the references of x86-64 instructions at `start..end`.
fn x86_64(pair: &mut Pair, numbers: &Numbers, start: u64, end: u64) -> Result<(), Flaw> {
    let Some(bytes) = pair.from.memory(start, end - start) else {
        return Err(Flaw::Undecided(format!("the code at {start:#x} is not in the file")));
    };
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    // Bytes that are no instruction are data, after which instructions may begin anywhere.
    let mut doubtful = false;
    let uniform = pair.uniform();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            doubtful = true;
            continue;
        }
        pair.proof.instructions += 1;
        let at = instruction.ip();
        for operand in 0..instruction.op_count() {
            if instruction.op_kind(operand) == OpKind::Immediate64 {
                numbers.operand(at, instruction.immediate64())?;
            }
        }
        if instruction.is_ip_rel_memory_operand() {
            let target = instruction.ip_rel_memory_address();
            if uniform && numbers.is_header(target) {
                return Err(Flaw::Undecided(format!(
                    "the instruction at {at:#x} refers to the header table at {target:#x}, which is another"
                )));
            }
            let change = change(pair, at, target)?;
            if change != 0 {
                let offsets = decoder.get_constant_offsets(&instruction);
                let (place, len) = (offsets.displacement_offset(), offsets.displacement_size());
                reference(pair, at, target, change, (place, len), doubtful)?;
            }
        }
        if matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        ) {
            let target = instruction.near_branch_target();
            let offsets = decoder.get_constant_offsets(&instruction);
            let (place, len) = (offsets.immediate_offset(), offsets.immediate_size());
            let executable = |load: &Program| load.executable();
            match pair.from.load(target).map(executable) {
                Some(true) => {
                    let change = change(pair, at, target)?;
                    if change != 0 {
                        reference(pair, at, target, change, (place, len), doubtful)?;
                    }
                }
                // Such a branch is never taken: a call of a weak symbol that is not defined, or data. It may
                // be written anew or stay.
                Some(false) if len == 4 => {
                    let change = change(pair, at, target)?;
                    either(pair, at + place as u64, change);
                }
                _ => {}
            }
        }
    }
    if doubtful { numbers.doubtful(start, bytes) } else { Ok(()) }
}

/// Adds a distance of 4 bytes that may grow by `change`.
fn either(pair: &mut Pair, at: u64, change: u64) {
    let old = pair.from.memory(at, 4).and_then(|b| u32_at(b, 0)).unwrap_or_default();
    let new = i64::from(old.cast_signed()).wrapping_add(change.cast_signed());
    if let (true, Ok(new)) = (change != 0, i32::try_from(new)) {
        let (value, or) = (u64::from(new.cast_unsigned()), Some(u64::from(old)));
        pair.places.push(Place {
            at,
            len: 4,
            value,
            or,
            what: "the distance of a branch to what is no code",
        });
    }
}

/// Adds a reference whose distance grows by `change`.
fn reference(
    pair: &mut Pair,
    at: u64,
    target: u64,
    change: u64,
    (offset, len): (usize, usize),
    doubtful: bool,
) -> Result<(), Flaw> {
    // A compiler may fold an index into the address of an array. So an address may lie in another part than the array
    // does. If the part keeps its distance to the code, that does not matter. Else a symbol must name the address.
    let unnamed = !linker_defines(pair, if target < 64 { 0 } else { target });
    if doubtful || unnamed || len != 4 {
        let what =
            format!("what looks like an instruction at {at:#x} refers to {target:#x}, which moves apart");
        return Err(Flaw::Undecided(what));
    }
    let place = at + offset as u64;
    let old = pair.from.memory(place, 4).and_then(|b| u32_at(b, 0)).unwrap_or_default();
    let new = i64::from(old.cast_signed()).wrapping_add(change.cast_signed());
    let Ok(new) = i32::try_from(new) else {
        return Err(Flaw::Undecided(format!(
            "the instruction at {at:#x} cannot reach {target:#x} in the copy"
        )));
    };
    let value = u64::from(new.cast_unsigned());
    pair.places.push(Place { at: place, len: 4, value, or: None, what: "the reference of an instruction" });
    pair.proof.references += 1;
    Ok(())
}

/// Adds the references of AArch64 instructions at `start..end`. Data between them may look like one, so a
/// reference to what moves apart is only believed if it is an ADRP to a page of the object.
fn aarch64(pair: &mut Pair, numbers: &Numbers, start: u64, end: u64) -> Result<(), Flaw> {
    let Some(bytes) = pair.from.memory(start, end - start) else {
        return Err(Flaw::Undecided(format!("the code at {start:#x} is not in the file")));
    };
    let uniform = pair.uniform();
    for (i, word) in bytes.chunks_exact(4).enumerate() {
        let at = start + 4 * i as u64;
        let word = u32_at(word, 0).unwrap_or_default();
        pair.proof.instructions += 1;
        let bits = |low: u32, count: u32| u64::from(word >> low & ((1 << count) - 1));
        let signed =
            |value: u64, bits: u32| ((value << (64 - bits)).cast_signed() >> (64 - bits)).cast_unsigned();
        let page = word & 0x9f00_0000 == 0x9000_0000;
        let target = if word & 0x1f00_0000 == 0x1000_0000 {
            // ADR, ADRP
            let distance = signed(bits(5, 19) << 2 | bits(29, 2), 21);
            if page { (at & !0xfff).wrapping_add(distance << 12) } else { at.wrapping_add(distance) }
        } else if word & 0x3b00_0000 == 0x1800_0000 {
            // LDR from a literal
            at.wrapping_add(signed(bits(5, 19), 19) << 2)
        } else {
            // Branches lead to code, which moves as one.
            continue;
        };
        let inside = |at: u64| pair.from.loads.iter().any(|l| l.vaddr & !0xfff <= at && at <= l.end());
        // Data that is decoded as an instruction mostly leads nowhere.
        if !inside(target) {
            continue;
        }
        // The page of an ADRP may hold a header table anywhere, if it is not known which byte of it is meant.
        let header = match page.then(|| byte_in_page(bytes.get(4 * (i + 1)..).unwrap_or_default(), word)) {
            Some(Some(byte)) => numbers.is_header(target.wrapping_add(byte)),
            Some(None) => (0..64).any(|i| numbers.is_header(target.wrapping_add(64 * i))),
            None => numbers.is_header(target),
        };
        if uniform && header {
            return Err(Flaw::Undecided(format!(
                "the instruction at {at:#x} refers to the header table at {target:#x}, which is another"
            )));
        }
        let change = change(pair, at, target)?;
        if change == 0 {
            continue;
        }
        let pages = signed(bits(5, 19) << 2 | bits(29, 2), 21)
            .wrapping_add((change.cast_signed() >> 12).cast_unsigned());
        if !page || signed(pages & 0x1f_ffff, 21) != pages {
            return Err(Flaw::Undecided(format!(
                "the instruction at {at:#x} refers to {target:#x}, which moves apart"
            )));
        }
        let low = u64::from(word & !(0x7f_ffff << 5 & 0x00ff_ffe0 | 3 << 29));
        let value = low | (pages >> 2 & 0x7_ffff) << 5 | (pages & 3) << 29;
        pair.places.push(Place { at, len: 4, value, or: None, what: "the reference of an instruction" });
        pair.proof.references += 1;
    }
    Ok(())
}

/// Returns to which byte of its page an ADRP refers. The code behind it must add a number to the register of the ADRP and
/// leave the sum there. Nothing else may use the register before, and the code may not branch before.
fn byte_in_page(code: &[u8], adrp: u32) -> Option<u64> {
    let page = adrp & 0x1f;
    for instruction in code.chunks_exact(4).take(16) {
        let word = u32_at(instruction, 0)?;
        let in_place = page | page << 5;
        // ADD (immediate) of 64 bits. With a shift by 12 another one may follow.
        if word & 0xffc0_03ff == 0x9100_0000 | in_place {
            return Some(u64::from(word >> 10 & 0xfff));
        }
        // What uses a register that it does not name, or continues elsewhere, is not among these.
        let known = match word >> 25 & 0xf {
            // Data processing: with an immediate, with registers, with vectors
            0x8 | 0x9 | 0x5 | 0xd | 0x7 | 0xf => true,
            // LDP, STP and the like; LDR and STR with an unsigned offset
            0x4 | 0x6 | 0xc | 0xe => word >> 27 & 7 == 5 || (word >> 27 & 7 == 7 && word >> 24 & 3 == 1),
            _ => false,
        };
        let named = [0, 5, 10, 16].iter().any(|&low| word >> low & 0x1f == page);
        if !known || named {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_byte_of_a_page_is_meant() {
        const ADRP: u32 = 0x9000_0014; // adrp x20, 0
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
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(byte_in_page(&code, ADRP), byte, "{words:x?}");
        }
    }
}
