// SPDX-License-Identifier: Apache-2.0
//! Finds the distances in the tables of unwinding, and demands that the unwinder of the copy finds for each
//! function the same rules, the same handler and the same table of the language, by its new address.

use super::file::{Elf, Section, u16_at, u32_at, u64_at};
use super::flaw::Flaw;
use super::pair::{Pair, Place};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, LittleEndian,
    ParsedEhFrameHdr, Pointer, UnwindContext, UnwindSection,
};
use object::elf;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

/// DW_EH_PE_omit
const OMIT: u8 = 0xff;

/// The section of frames.
pub(super) fn frames<'a, 'b>(elf: &'b Elf<'a>) -> Option<&'b Section<'a>> {
    elf.section(b".eh_frame").filter(|s| s.allocated() && s.has_bytes())
}

/// A pointer as the tables encode it.
struct Encoded {
    len: u64,
    /// What it points to, and from where it is counted; `None` if it is null or counted from nothing.
    from: Option<(u64, u64)>,
}

/// Reads the pointer at `at` by its encoding; `data` is where relative data are counted from.
fn encoded(elf: &Elf, at: u64, encoding: u8, data: u64) -> Option<Encoded> {
    let word = |len: u64| elf.memory(at, len);
    let (len, raw) = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => (8, u64_at(word(8)?, 0)?),
        0x02 => (2, u64::from(u16_at(word(2)?, 0)?)),
        0x0a => (2, i64::from(u16_at(word(2)?, 0)?.cast_signed()).cast_unsigned()),
        0x03 => (4, u64::from(u32_at(word(4)?, 0)?)),
        0x0b => (4, i64::from(u32_at(word(4)?, 0)?.cast_signed()).cast_unsigned()),
        _ => return None,
    };
    let base = match encoding & 0x70 {
        0x00 => return Some(Encoded { len, from: None }),
        0x10 => at,
        0x30 => data,
        _ => return None,
    };
    Some(Encoded { len, from: (raw != 0).then(|| (base.wrapping_add(raw), base)) })
}

/// Adds the place of the pointer at `at`, if its distance changes; returns its length.
fn add(pair: &mut Pair, at: u64, encoding: u8, data: u64, what: &'static str) -> Result<u64, Flaw> {
    let Some(pointer) = encoded(&pair.from, at, encoding, data) else {
        return Err(Flaw::Undecided(format!("{what} at {at:#x} has the encoding {encoding:#x}")));
    };
    if let Some((target, base)) = pointer.from {
        let distance = pair.moved(target, what)?.wrapping_sub(pair.moved(base, what)?);
        let old = target.wrapping_sub(base);
        if distance != old {
            let value = if pointer.len == 8 { distance } else { distance & ((1 << (8 * pointer.len)) - 1) };
            let signed = distance.cast_signed();
            let fits = pointer.len == 8
                || (encoding & 8 != 0 && signed >> (8 * pointer.len - 1) == signed >> 63)
                || (encoding & 8 == 0 && value == distance);
            if !fits {
                return Err(Flaw::Undecided(format!("{what} at {at:#x} would need {distance:#x}")));
            }
            pair.places.push(Place { at, len: pointer.len, value, or: None, what });
        }
    }
    Ok(pointer.len)
}

/// Adds the distances of all tables of unwinding that change.
pub(super) fn places(pair: &mut Pair) -> Result<(), Flaw> {
    if pair.uniform() {
        return Ok(());
    }
    header(pair)?;
    let Some(section) = frames(&pair.from).copied() else { return Ok(()) };
    let cut = |at: u64| Flaw::Undecided(format!("the frame at {at:#x} cannot be read"));
    let mut at = section.addr;
    while at + 4 <= section.end() {
        let length = u64::from(pair.from.memory(at, 4).and_then(|b| u32_at(b, 0)).ok_or_else(|| cut(at))?);
        if length == 0 {
            // Objects may each have brought their terminator.
            at += 4;
            continue;
        }
        if length == 0xffff_ffff {
            return Err(Flaw::Undecided(format!("the frame at {at:#x} has a length of 64 bits")));
        }
        let id = pair.from.memory(at + 4, 4).and_then(|b| u32_at(b, 0)).ok_or_else(|| cut(at))?;
        let end = at + 4 + length;
        if end > section.end() {
            return Err(cut(at));
        }
        if id == 0 {
            cie(pair, at, true).ok_or_else(|| cut(at))??;
        } else {
            let encodings =
                cie(pair, (at + 4).wrapping_sub(u64::from(id)), false).ok_or_else(|| cut(at))??;
            fde(pair, at, &encodings).ok_or_else(|| cut(at))??;
        }
        at = end;
    }
    Ok(())
}

/// How the frames of one CIE encode their pointers.
struct Encodings {
    address: u8,
    lsda: u8,
    augmented: bool,
}

/// Reads the CIE at `at`, and adds its pointer to the personality if `places`. Returns `None` if it is cut off.
fn cie(pair: &mut Pair, at: u64, places: bool) -> Option<Result<Encodings, Flaw>> {
    let bytes = pair.from.memory_from(at)?;
    let version = *bytes.get(8)?;
    let name_end = 9 + bytes.get(9..)?.iter().position(|b| *b == 0)?;
    let augmentation = bytes.get(9..name_end)?;
    let mut pos = name_end + 1;
    leb(bytes, &mut pos)?;
    leb(bytes, &mut pos)?;
    if version == 1 {
        pos += 1;
    } else {
        leb(bytes, &mut pos)?;
    }
    let mut encodings = Encodings { address: 0, lsda: OMIT, augmented: false };
    for letter in augmentation {
        match letter {
            b'z' => {
                leb(bytes, &mut pos)?;
                encodings.augmented = true;
            }
            b'R' => {
                encodings.address = *bytes.get(pos)?;
                pos += 1;
            }
            b'L' => {
                encodings.lsda = *bytes.get(pos)?;
                pos += 1;
            }
            b'P' => {
                let encoding = *bytes.get(pos)?;
                pos += 1;
                let place = at + pos as u64;
                let len = if places {
                    match add(pair, place, encoding, 0, "the personality of a frame") {
                        Ok(len) => len,
                        Err(flaw) => return Some(Err(flaw)),
                    }
                } else {
                    encoded(&pair.from, place, encoding, 0)?.len
                };
                pos += len as usize;
            }
            b'S' | b'B' | b'G' => {}
            other => {
                let what = format!("the frame at {at:#x} has the augmentation {}", other.escape_ascii());
                return Some(Err(Flaw::Undecided(what)));
            }
        }
    }
    Some(Ok(encodings))
}

/// Adds the pointers of the FDE at `at`. Returns `None` if it is cut off.
fn fde(pair: &mut Pair, at: u64, encodings: &Encodings) -> Option<Result<(), Flaw>> {
    let mut place = at + 8;
    // The second of both is a length.
    let len = match add(pair, place, encodings.address, 0, "the function of a frame") {
        Ok(len) => len,
        Err(flaw) => return Some(Err(flaw)),
    };
    place += 2 * len;
    if !encodings.augmented {
        return Some(Ok(()));
    }
    let bytes = pair.from.memory_from(place)?;
    let mut pos = 0;
    let size = leb(bytes, &mut pos)?;
    if encodings.lsda != OMIT && size > 0 {
        let added = add(pair, place + pos as u64, encodings.lsda, 0, "the language's table of a frame");
        return Some(added.map(drop));
    }
    Some(Ok(()))
}

/// Reads a number of variable length.
fn leb(bytes: &[u8], pos: &mut usize) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(*pos)?;
        *pos += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}

/// Adds the distances of the table by which functions are found (`.eh_frame_hdr`).
fn header(pair: &mut Pair) -> Result<(), Flaw> {
    let Some(header) = pair.from.program(elf::PT_GNU_EH_FRAME).copied() else { return Ok(()) };
    let at = header.vaddr;
    let Some(&[version, frames, count, table]) = pair.from.memory(at, 4) else {
        return Err(Flaw::Header(format!("the table of frames at {at:#x} is not in the file")));
    };
    if version != 1 {
        return Err(Flaw::Undecided(format!("the table of frames at {at:#x} has version {version}")));
    }
    let mut place = at + 4;
    if frames != OMIT {
        place += add(pair, place, frames, at, "the address of the frames")?;
    }
    if count == OMIT || table == OMIT {
        return Ok(());
    }
    let cut = || Flaw::Undecided(format!("the table of frames at {at:#x} cannot be read"));
    let entries = match count & 0x0f {
        0x03 | 0x0b => (4, pair.from.memory(place, 4).and_then(|b| u32_at(b, 0)).map(u64::from)),
        _ => return Err(cut()),
    };
    place += entries.0;
    for _ in 0..entries.1.ok_or_else(cut)? {
        place += add(pair, place, table, at, "a function of the table of frames")?;
        place += add(pair, place, table, at, "a frame of the table of frames")?;
    }
    Ok(())
}

/// What an unwinder reads of a file.
struct Unwinder<'a> {
    bases: BaseAddresses,
    frames: EhFrame<Slice<'a>>,
    header: Option<ParsedEhFrameHdr<Slice<'a>>>,
}

impl<'a> Unwinder<'a> {
    /// Reads the tables of `elf`, by its program header if it has one, as unwinders do.
    fn new(elf: &Elf<'a>) -> Result<Option<Unwinder<'a>>, Flaw> {
        let cut =
            |e: &dyn std::fmt::Display| Flaw::Undecided(format!("the table of frames cannot be read: {e}"));
        let mut bases = BaseAddresses::default();
        let mut header = None;
        let mut at = frames(elf).map(|s| (s.addr, s.size));
        if let Some(program) = elf.program(elf::PT_GNU_EH_FRAME).filter(|p| p.filesz > 0) {
            bases = bases.set_eh_frame_hdr(program.vaddr);
            let bytes = elf.memory(program.vaddr, program.filesz).unwrap_or_default();
            let parsed = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).map_err(|e| cut(&e))?;
            if let (Pointer::Direct(found), Some((section, _))) = (parsed.eh_frame_ptr(), at)
                && found != section
            {
                return Err(Flaw::Header(format!("the frames at {section:#x} are found at {found:#x}")));
            }
            header = Some(parsed);
        }
        let Some((addr, size)) = at.take() else { return Ok(None) };
        let bytes = elf.memory(addr, size).unwrap_or_default();
        bases = bases.set_eh_frame(addr);
        Ok(Some(Unwinder { bases, frames: EhFrame::new(bytes, LittleEndian), header }))
    }

    /// Finds the frame of the function at `pc`: its offset in the section.
    fn find(&self, pc: u64) -> Option<usize> {
        let header = self.header.as_ref()?;
        let pointer = header.table()?.lookup(pc, &self.bases).ok()?.direct().ok()?;
        // gimli's own subtraction overflows where the table of a damaged file leads before the frames.
        let frames = header.eh_frame_ptr().direct().ok()?;
        usize::try_from(pointer.checked_sub(frames)?).ok()
    }

    fn fde(&self, offset: usize) -> Result<Fde<'a>, gimli::Error> {
        self.frames.fde_from_offset(&self.bases, offset.into(), EhFrame::cie_from_offset)
    }
}

/// Demands that an unwinder does the same for each function.
pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let (old, new) = (Unwinder::new(&pair.from)?, Unwinder::new(&pair.to)?);
    let (Some(old), Some(new)) = (old, new) else { return Ok(()) };
    let mut entries = old.frames.entries(&old.bases);
    loop {
        let entry = match entries.next() {
            Ok(Some(CieOrFde::Fde(entry))) => entry,
            Ok(Some(CieOrFde::Cie(_))) => continue,
            Ok(None) => return Ok(()),
            Err(e) => return Err(Flaw::Undecided(format!("the frames cannot be read: {e}"))),
        };
        let fde = entry.parse(EhFrame::cie_from_offset);
        let fde = fde.map_err(|e| Flaw::Undecided(format!("a frame cannot be read: {e}")))?;
        let at = fde.initial_address();
        let flaw = |what: String| Flaw::Unwind { at, what };
        // Code that the linker has dropped leaves a frame for address 0, which nobody asks for.
        if fde.len() == 0 || pair.distances.part(at).is_none() {
            continue;
        }
        let to = pair.moved(at, "a function")?;
        let (mut mine, mut offset) = (fde, entry_offset(&old, at));
        match offset {
            Some(found) => {
                mine = old.fde(found).map_err(|e| flaw(e.to_string()))?;
                let copied = new.find(to).ok_or_else(|| flaw(format!("no frame is found at {to:#x}")))?;
                if copied != found {
                    return Err(flaw(format!("another frame is found at {to:#x}")));
                }
            }
            // Without a table the frames are searched in order.
            None => offset = Some(mine.offset()),
        }
        let theirs = new.fde(offset.unwrap_or_default()).map_err(|e| flaw(e.to_string()))?;
        compare(pair, &old, &mine, &new, &theirs).map_err(|what| flaw(what.into()))?;
        pair.proof.functions += 1;
    }
}

fn entry_offset(unwinder: &Unwinder, pc: u64) -> Option<usize> {
    unwinder.find(pc)
}

fn compare(pair: &Pair, old: &Unwinder, a: &Fde, new: &Unwinder, b: &Fde) -> Result<(), &'static str> {
    let moved = |pointer: Option<Pointer>| {
        pointer.map(|pointer| match pointer {
            Pointer::Direct(0) => Some(pointer),
            Pointer::Direct(at) => pair.image(at).map(Pointer::Direct),
            Pointer::Indirect(at) => pair.image(at).map(Pointer::Indirect),
        })
    };
    if pair.image(a.initial_address()) != Some(b.initial_address()) || a.len() != b.len() {
        return Err("its frame covers other code");
    }
    if moved(a.lsda()) != b.lsda().map(Some) {
        return Err("the language's table lies elsewhere");
    }
    if moved(a.personality()) != b.personality().map(Some) {
        return Err("the personality lies elsewhere");
    }
    if a.is_signal_trampoline() != b.is_signal_trampoline() {
        return Err("only one is a handler's frame");
    }
    rows(old, a, new, b)
}

/// Compares the rules of every instruction of a function.
fn rows(old: &Unwinder, a: &Fde, new: &Unwinder, b: &Fde) -> Result<(), &'static str> {
    const WHY: &str = "its rules cannot be read";
    let (mut left, mut right) = (UnwindContext::new(), UnwindContext::new());
    let mut before = a.rows(&old.frames, &old.bases, &mut left).map_err(|_| WHY)?;
    let mut after = b.rows(&new.frames, &new.bases, &mut right).map_err(|_| WHY)?;
    loop {
        // A rule that cannot be read in the original cannot be read in the copy either.
        match (before.next_row(), after.next_row()) {
            (Ok(Some(x)), Ok(Some(y))) => {
                let same = x.start_address().wrapping_sub(a.initial_address())
                    == y.start_address().wrapping_sub(b.initial_address())
                    && matches!((x.cfa(), y.cfa()), (m, n) if same_cfa(m, n))
                    && x.registers().eq(y.registers());
                if !same {
                    return Err("its rules are not the same");
                }
            }
            (Ok(None), Ok(None)) => return Ok(()),
            (Err(x), Err(y)) if x == y => return Ok(()),
            _ => return Err("its rules are not the same"),
        }
    }
}

fn same_cfa(a: &CfaRule<usize>, b: &CfaRule<usize>) -> bool {
    a == b
}
