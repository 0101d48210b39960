// SPDX-License-Identifier: Apache-2.0
//! Re-lays generated, damaged and real ELF files: each one that is not refused keeps every byte at its
//! address, gets its huge pages, and does not change a second time.

#[path = "../../../core/tests/common/cases.rs"]
mod cases;
mod elf_file;

use elf_file::{Made, Piece, made, put};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::{ElfError, Headers};
use hugelift_relink::align::{Difference, Layout, Refusal, Stuck, layout, verify};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small, so that generated files can be small.
const PAGE: u64 = 64 << 10;

/// Checks everything that must hold of a layout. Returns the output.
fn check(input: &[u8], layout: &Layout) -> Vec<u8> {
    let page = layout.page.bytes();
    for pair in layout.moves.windows(2) {
        assert!(pair[0].from + pair[0].len <= pair[1].from && pair[0].to + pair[0].len <= pair[1].to);
    }
    for m in &layout.moves {
        assert!(m.to >= m.from && (m.to - m.from) % 4096 == 0 && m.to + m.len <= layout.bytes);
        assert!(m.from + m.len <= input.len() as u64);
    }
    let output = layout.write(input);
    verify(input, &output).unwrap();
    // The memory image must be the same, by the parser that the planner uses.
    let (before, after) = (Headers::parse(input).unwrap(), Headers::parse(&output).unwrap());
    assert_eq!(before.segments.len(), after.segments.len());
    for ((a, b), placed) in before.segments.iter().zip(&after.segments).zip(&layout.segments) {
        assert_eq!((a.vaddr, a.memsz, a.filesz, a.prot), (b.vaddr, b.memsz, b.filesz, b.prot));
        assert_eq!((a.offset, b.offset, b.align), (placed.from, placed.to, placed.align_to));
        if placed.whole > 0 && placed.stuck.is_none() {
            assert_eq!(b.offset % page, b.vaddr % page);
            assert!(b.align >= page);
        }
    }
    // A second time changes nothing.
    let again = hugelift_relink::align::layout(&output, layout.page).unwrap();
    assert!(again.is_identity(), "{again:?}");
    assert!(again.write(&output) == output);
    output
}

fn small(input: &[u8]) -> Result<Layout, Refusal> {
    layout(input, PageSize::new(PAGE).unwrap())
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = (0..200_000_u64, 0..5_u64, 0..3_u64, 0..70_000_u64, any::<bool>(), 0..3_u32);
    vec(piece, 1..6).prop_map(|all| {
        let piece = |(filesz, skew, gap, bss, write, align)| Piece {
            filesz,
            skew,
            gap: gap * 4096,
            bss: if write { bss } else { 0 },
            write,
            align: [0x1000, 0x10000, 1][align as usize],
        };
        all.into_iter().map(piece).collect()
    })
}

fn files() -> impl Strategy<Value = Made> {
    let outside = vec(0..5000_usize, 0..4);
    (pieces(), outside, any::<bool>(), any::<bool>(), 0..3_u64).prop_map(
        |(pieces, outside, relocatable, headers_last, base)| Made {
            pieces,
            outside,
            relocatable,
            headers_last,
            base: [0, 0x40_0000, 0x40_1000][base as usize],
        },
    )
}

proptest! {
    #![proptest_config(cases::times(2))]

    #[test]
    fn generated_files_keep_their_bytes_and_get_their_pages(file in files()) {
        let input = made(&file);
        verify(&input, &input).unwrap();
        match small(&input) {
            Ok(layout) => {
                check(&input, &layout);
                let first = &layout.segments[0];
                for s in layout.segments.iter().filter(|s| s.stuck.is_some()) {
                    // Only the start of the file cannot be moved.
                    prop_assert_eq!((s.vaddr, s.stuck), (first.vaddr, Some(Stuck::Header)));
                }
            }
            Err(Refusal::TooSmall { .. }) => {
                prop_assert!(file.pieces.iter().all(|p| p.filesz < 2 * PAGE + 4096));
            }
            Err(Refusal::Stuck { .. }) => prop_assert!(file.base % PAGE != 0),
            Err(Refusal::ProgramHeaders) => prop_assert!(file.headers_last),
            Err(other) => return Err(TestCaseError::fail(format!("{other}"))),
        }
    }

    #[test]
    fn damaged_files_are_refused_or_keep_their_bytes(
        file in files(),
        flips in vec((0..4096_u16, any::<u8>()), 0..4),
        words in vec((any::<u16>(), prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), 0..300_000_u64]), 0..4),
        table in any::<bool>(),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut input = made(&file);
        // The file header or the section table.
        let tables = [32, u64::from_le_bytes(input[40..48].try_into().unwrap()) as usize];
        for (at, bits) in flips {
            let at = if table { tables[1] } else { 0 } + usize::from(at);
            if let Some(byte) = input.get_mut(at) { *byte ^= bits; }
        }
        for (at, word) in words {
            let from = tables[usize::from(table)];
            put(&mut input, from + usize::from(at % 512) * 8, word);
        }
        if let Some(cut) = cut { input.truncate(cut.index(input.len())); }
        if let Ok(layout) = small(&input) {
            // An extreme p_align demands more padding than fits into memory.
            if layout.bytes < 1 << 26 { check(&input, &layout); }
        }
        let _ = verify(&input, &made(&file));
    }

    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..600)) {
        let _ = small(&bytes);
        let _ = small(&[b"\x7fELF\x02\x01\x01".to_vec(), bytes].concat());
    }
}

/// Returns a file with one large text segment, skewed by a page as lld does, and data behind it.
fn skewed() -> Made {
    let piece = |filesz, skew, write| Piece { filesz, skew, gap: 0, bss: 0, write, align: 0x1000 };
    Made {
        pieces: vec![piece(9000, 0, false), piece(300_000, 1, false), piece(5000, 1, true)],
        outside: vec![333, 4444],
        relocatable: true,
        headers_last: false,
        base: 0,
    }
}

#[test]
fn a_skewed_text_is_moved_by_its_skew() {
    let input = made(&skewed());
    let layout = small(&input).unwrap();
    let text = &layout.segments[1];
    assert_eq!((text.to - text.from, text.whole, text.stuck), (4096, 3 * PAGE, None));
    assert!(!text.congruent_before(layout.page) && layout.moved());
    assert_eq!(layout.aslr_bits_lost(), 4);
    let output = check(&input, &layout);
    assert_eq!(output.len() as u64, layout.bytes);
    assert!(output.len() <= input.len() + 2 * 4096);
}

#[test]
fn appended_data_is_not_moved() {
    let mut input = made(&skewed());
    input.extend([0; 64]);
    check(&input, &small(&input).unwrap());
    input.extend(b"PK\x03\x04 an archive");
    let refused = small(&input).unwrap_err();
    assert_eq!(refused, Refusal::Payload { bytes: 64 + 15, starts: "PK\\x03\\x04 an ".into() });
    // If nothing moves, appended data may stay.
    let mut well = made(&Made { pieces: vec![Piece { filesz: 300_000, ..skewed().pieces[0] }], ..skewed() });
    well.extend(b"payload");
    let output = check(&well, &small(&well).unwrap());
    assert!(output.ends_with(b"payload") && output.len() == well.len());
}

#[test]
fn each_other_kind_of_file_has_its_refusal() {
    let good = made(&skewed());
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        small(&file).unwrap_err()
    };
    assert_eq!(with(16, &[1, 0]), Refusal::Object);
    assert_eq!(with(16, &[4, 0]), Refusal::Core);
    assert_eq!(with(4, &[1]), Refusal::Elf(ElfError::Class32));
    assert_eq!(with(5, &[2]), Refusal::Elf(ElfError::BigEndian));
    assert_eq!(with(0, b"#!/b"), Refusal::Elf(ElfError::NotElf("#!/b".into())));
    assert_eq!(with(40, &[0; 8]), Refusal::NoSections);
    assert!(matches!(with(40, &[0xf0, 0xff, 0xff]), Refusal::Short { .. }));
    assert!(matches!(small(&good[..good.len() / 2]), Err(Refusal::Short { .. })));
    // The offset of the second PT_LOAD no longer agrees with its address.
    let offset = u64::from_le_bytes(good[64 + 56 + 8..][..8].try_into().unwrap());
    assert!(matches!(with(64 + 56 + 8, &(offset - 16).to_le_bytes()), Refusal::Torn { .. }));
    assert!(matches!(layout(&good, PageSize::MB2), Err(Refusal::TooSmall { largest: 300_000, .. })));
    let based = made(&Made { base: 0x40_1000, ..skewed() });
    assert!(matches!(small(&based), Err(Refusal::Stuck { why: Stuck::Base(_), .. })));
    let name = good.windows(7).position(|w| w == b".shstrt").unwrap();
    let mut prelinked = good.clone();
    prelinked[name..name + 18].copy_from_slice(b".gnu.prelink_undo\0");
    assert_eq!(small(&prelinked).unwrap_err(), Refusal::Prelinked);
}

#[test]
fn a_difference_is_found() {
    let input = made(&skewed());
    let layout = small(&input).unwrap();
    let output = layout.write(&input);
    let text = layout.segments[1].to as usize;
    let changed = |at: usize| {
        let mut wrong = output.clone();
        wrong[at] ^= 1;
        verify(&input, &wrong).unwrap_err()
    };
    assert!(matches!(changed(text + 100), Difference::Bytes(_)));
    assert!(matches!(changed(output.len() - 8), Difference::Header(_)));
    assert!(matches!(changed(24), Difference::Header(_)), "the entry point");
    assert!(matches!(changed(64 + 4), Difference::Header(_)), "the flags of a segment");
    assert!(matches!(changed(64 + 56 + 9), Difference::Unreadable(_) | Difference::Bytes(_)));
    assert!(matches!(changed(64 + 56 + 48), Difference::Alignment(_)), "p_align");
}

#[test]
fn this_very_program_is_re_laid() {
    let input = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let layout = small(&input).unwrap();
    assert!(layout.segments.iter().any(|s| s.whole > 0 && s.prot.exec));
    check(&input, &layout);
}
