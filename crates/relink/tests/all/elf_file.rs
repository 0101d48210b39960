// SPDX-License-Identifier: Apache-2.0
//! Generates whole ELF files: segments with gaps and skews as linkers make them, sections inside and
//! outside of them, program headers at the start or the end.

/// One segment.
#[derive(Clone, Debug)]
pub struct Piece {
    pub filesz: u64,
    /// Pages of 4 kB that this segment adds to the distance between address and offset.
    pub skew: u64,
    /// Unused bytes of the file before it.
    pub gap: u64,
    pub bss: u64,
    pub write: bool,
    pub align: u64,
}

/// Describes a file to generate.
#[derive(Clone, Debug)]
pub struct Made {
    pub pieces: Vec<Piece>,
    /// Sizes of sections outside the segments.
    pub outside: Vec<usize>,
    pub relocatable: bool,
    /// The program headers lie in a segment of their own at the end (as BOLT and patchelf do).
    pub headers_last: bool,
    /// Address of the first segment.
    pub base: u64,
}

/// Writes a word of 64 bits, if it fits.
pub fn put(file: &mut [u8], at: usize, word: u64) {
    if let Some(place) = file.get_mut(at..at + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// (flags, offset, vaddr, filesz, memsz, align)
type Load = (u32, u64, u64, u64, u64, u64);

fn program(kind: u32, (flags, offset, vaddr, filesz, memsz, align): Load) -> Vec<u8> {
    let words = [offset, vaddr, vaddr, filesz, memsz, align];
    let head = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
    words.iter().fold(head, |all, w| [all, w.to_le_bytes().to_vec()].concat())
}

fn section(name: u32, kind: u32, flags: u64, addr: u64, offset: u64, size: u64) -> Vec<u8> {
    let mut all = [name.to_le_bytes(), kind.to_le_bytes()].concat();
    for word in [flags, addr, offset, size, 0, 8, 0] {
        all.extend(word.to_le_bytes());
    }
    all
}

/// Returns the bytes of the file.
pub fn made(made: &Made) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.x\0.shstrtab_padding_room\0";
    let count = made.pieces.len() + 2 + usize::from(made.headers_last);
    let table = (count * 56) as u64;
    let mut file = vec![0_u8; 64];
    let mut noise = fastrand::Rng::with_seed(1);
    let mut fill = |file: &mut Vec<u8>, to: u64| {
        while (file.len() as u64) < to {
            file.push(noise.u8(..) | 1);
        }
    };
    let mut loads: Vec<Load> = Vec::new();
    let mut address = made.base;
    let mut extra = made.base;
    for (i, piece) in made.pieces.iter().enumerate() {
        // The first segment holds the headers; the others begin anywhere in a page.
        let start = if i == 0 { 0 } else { (file.len() as u64).next_multiple_of(4096) + piece.gap + 64 };
        extra += if i == 0 { 0 } else { piece.skew * 4096 };
        let ahead = (address.saturating_sub(start + extra)).next_multiple_of(4096);
        extra += ahead;
        let vaddr = if i == 0 { made.base } else { start + extra };
        file.resize(file.len().max(start as usize), 0);
        let filesz = if i == 0 { piece.filesz.max(64 + table) } else { piece.filesz };
        fill(&mut file, start + filesz);
        let flags = if piece.write { 6 } else { 5 };
        loads.push((flags, start, vaddr, filesz, filesz + piece.bss, piece.align));
        address = (vaddr + filesz + piece.bss).next_multiple_of(4096);
    }
    let mut phoff = 64;
    if made.headers_last {
        // As patchelf does: at an offset that agrees with the address, which old kernels need.
        phoff = (file.len() as u64).max(address - made.base).next_multiple_of(4096);
        file.resize(phoff as usize, 0);
        fill(&mut file, phoff + table);
        loads.push((4, phoff, phoff + made.base, table, table, 0x1000));
    }
    let last = *loads.last().expect("a segment");
    let mut programs: Vec<u8> = loads.iter().flat_map(|l| program(1, *l)).collect();
    // PT_TLS without bytes, PT_GNU_STACK.
    programs.extend(program(7, (4, last.1, last.2, 0, 16, 8)));
    programs.extend(program(0x6474_e551, (6, 0, 0, 0, 0, 16)));
    file[phoff as usize..][..programs.len()].copy_from_slice(&programs);

    let mut sections = section(0, 0, 0, 0, 0, 0);
    for &(_, offset, vaddr, filesz, memsz, _) in &loads {
        if filesz > 1024 + table {
            let inside = 64 + table;
            sections.extend(section(1, 1, 2, vaddr + inside, offset + inside, filesz - inside));
        }
        // NOBITS has no bytes in the file.
        sections.extend(section(1, 8, 3, vaddr + filesz, offset + filesz, memsz - filesz));
    }
    for &size in &made.outside {
        let offset = file.len() as u64;
        fill(&mut file, offset + size as u64);
        sections.extend(section(1, 1, 0, 0, offset, size as u64));
    }
    sections.extend(section(4, 3, 0, 0, file.len() as u64, NAMES.len() as u64));
    file.extend(NAMES);
    file.resize(file.len().next_multiple_of(8), 0);
    let shoff = file.len() as u64;
    file.extend(&sections);

    let shnum = sections.len() / 64;
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |n: usize| u16::try_from(n).expect("a small number").to_le_bytes();
    let kind = if made.relocatable { 3 } else { 2 };
    for (at, n) in [(16, kind), (18, 62), (20, 1), (52, 64), (54, 56), (56, count), (58, 64), (60, shnum)] {
        file[at..at + 2].copy_from_slice(&half(n));
    }
    file[62..64].copy_from_slice(&half(shnum - 1));
    for (at, word) in [(24, made.base + 64), (32, phoff), (40, shoff)] {
        put(&mut file, at, word);
    }
    file
}
