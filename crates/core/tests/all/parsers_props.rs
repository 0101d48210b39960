// SPDX-License-Identifier: Apache-2.0
//! The parsers answer for any bytes, and read back what was written.

use crate::common::{PROGRAMS, all_heads, machine, maps};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::elf::{Dynamic, ElfError, Headers, build_id, dynamic};
use hugelift_core::maps::{FileId, Mapping, Prot, parse_maps};
use hugelift_core::plan::plan;
use hugelift_core::policy::Policy;
use hugelift_core::record::{EntryFile, Evidence, Identity, Record, RecordError, StoredSpan, VERSION};
use hugelift_core::smaps::parse_smaps;
use hugelift_core::snapshot::{Object, Snapshot};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::LazyLock;

static HEADS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(all_heads);

/// Damage to a good input.
#[derive(Clone, Debug)]
struct Damage {
    /// (position in 65536ths of the length; bits to flip)
    flips: Vec<(u16, u8)>,
    /// (position in 65536ths of the length; a word of 64 bits with an extreme value)
    words: Vec<(u16, u64)>,
    cut: Option<u16>,
    /// Bytes put in front, which also shift the rest out of any alignment.
    front: Vec<u8>,
}

impl Damage {
    fn of(&self, good: &[u8]) -> Vec<u8> {
        let at = |where_: u16, len: usize| (usize::from(where_) * len) >> 16;
        let mut out = good.to_vec();
        for &(where_, bits) in &self.flips {
            let i = at(where_, out.len());
            if let Some(byte) = out.get_mut(i) {
                *byte ^= bits;
            }
        }
        for &(where_, word) in &self.words {
            let i = at(where_, out.len()) & !7;
            if let Some(bytes) = out.get_mut(i..i + 8) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        if let Some(cut) = self.cut {
            out.truncate(at(cut, out.len()));
        }
        [self.front.clone(), out].concat()
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let extreme =
        prop_oneof![Just(u64::MAX), Just(1 << 63), Just(0), Just(!0xfff), Just(u64::MAX >> 1), any::<u64>()];
    let front = prop_oneof![4 => Just(vec![]), 1 => vec(any::<u8>(), 1..9)];
    let flips = vec((any::<u16>(), 1..=u8::MAX), 0..4);
    (flips, vec((any::<u16>(), extreme), 0..4), prop::option::weighted(0.3, any::<u16>()), front)
        .prop_map(|(flips, words, cut, front)| Damage { flips, words, cut, front })
}

/// Parses and plans: headers may parse and still be contradictory, and planning must accept them.
fn plan_for(head: &[u8], bias: u64) -> Result<Headers, ElfError> {
    let headers = Headers::parse(head)?;
    headers.first_page(4096);
    let mappings = parse_maps(maps(PROGRAMS[0].1).as_bytes()).unwrap();
    let (path, file) = (mappings[0].path.clone(), mappings[0].file);
    let object = Object {
        path,
        file,
        build_id: None,
        bias,
        headers: headers.clone(),
        executable: true,
        textrel: false,
    };
    let snapshot = Snapshot::new(vec![object.clone(), object], mappings, machine());
    let plan = plan(&snapshot, &Policy::default());
    let bytes: u64 = snapshot.extents().iter().map(|e| e.range.len()).sum();
    let planned: u64 =
        plan.spans.iter().map(|s| s.range).chain(plan.skips.iter().map(|s| s.range)).map(Range::len).sum();
    assert_eq!(planned, bytes);
    Ok(headers)
}

fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
    let words = [name.len() as u32, desc.len() as u32, kind];
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    for part in [name, desc] {
        out.extend(part);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn mappings() -> impl Strategy<Value = Vec<Mapping>> {
    let name = prop_oneof![
        Just(b"[heap]".to_vec()),
        Just(vec![]),
        vec(any::<u8>(), 0..40).prop_map(|b| [b"/".to_vec(), b].concat())
    ];
    let one = (
        1..1_u64 << 40,
        0..1_u64 << 40,
        any::<[bool; 4]>(),
        any::<u64>(),
        any::<(u32, u32, u64)>(),
        name,
        any::<bool>(),
    );
    vec(one, 0..12).prop_map(|all| {
        let mut at = 0;
        let make = |(len, gap, flags, offset, (major, minor, inode), name, deleted)| {
            let [read, write, exec, shared]: [bool; 4] = flags;
            let start: u64 = at + gap;
            at = start + len;
            let path = PathBuf::from(OsString::from_vec(name));
            let named = path.is_absolute();
            let range = Range { start: Addr(start), end: Addr(at) };
            let file = FileId { major, minor, inode };
            let prot = Prot { read, write, exec, bti: false };
            Mapping { range, prot, shared, offset, file, path, deleted: deleted && inode != 0 && named }
        };
        all.into_iter().map(make).collect()
    })
}

/// Returns the line that Linux prints; `None` if the path is ambiguous: the kernel escapes a newline but
/// no backslash, and appends " (deleted)", with which a file's name may end.
fn printed(m: &Mapping) -> Option<Vec<u8>> {
    let path = m.path.as_os_str().as_bytes();
    if path.windows(4).any(|w| w == b"\\012") || path.ends_with(b" (deleted)") {
        return None;
    }
    let share = if m.shared { 's' } else { 'p' };
    let (range, file) = (m.range, m.file);
    let mut head = format!("{:08x}-{:08x} {}{share} {:08x} ", range.start.0, range.end.0, m.prot, m.offset);
    write!(head, "{:02x}:{:02x} {} ", file.major, file.minor, file.inode).unwrap();
    let mut line = format!("{head:<73}").into_bytes();
    for &b in path {
        if b == b'\n' { line.extend(b"\\012") } else { line.push(b) }
    }
    line.extend(if m.deleted { &b" (deleted)"[..] } else { b"" });
    line.push(b'\n');
    Some(line)
}

proptest! {
    #![proptest_config(crate::common::cases::times(8))]

    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..600)) {
        let _ = Headers::parse(&bytes);
        let _ = Headers::parse(&[b"\x7fELF\x02\x01\x01".to_vec(), bytes.clone()].concat());
        build_id(&bytes);
        dynamic(&bytes);
        let _ = parse_maps(&bytes);
        let _ = parse_smaps(&bytes);
    }

    #[test]
    fn damaged_elf_heads_are_planned_or_refused(
        n in any::<prop::sample::Index>(), damage in damage(), bias in any::<u64>(), page in any::<u64>()
    ) {
        let heads = &*HEADS;
        let head: &Vec<u8> = n.get(heads);
        if let Ok(headers) = plan_for(&damage.of(head), bias) {
            prop_assert!(!headers.segments.is_empty());
            headers.first_page(page);
        }
    }

    #[test]
    fn a_head_reads_the_same_at_any_alignment(n in any::<prop::sample::Index>(), shift in 0..8_usize) {
        let heads = &*HEADS;
        let head = n.get(&heads[..]);
        let shifted = [vec![0; shift], head.clone()].concat();
        prop_assert_eq!(Headers::parse(head), Headers::parse(&shifted[shift..]));
    }

    #[test]
    fn a_table_elsewhere_reads_as_one_in_place(n in any::<prop::sample::Index>(), offset in 4096..u64::MAX) {
        let heads = &*HEADS;
        let mut head = n.get(&heads[..]).clone();
        let Ok(expected) = Headers::parse(&head) else { return Ok(()) };
        let table = head.split_off(64);
        head[32..40].copy_from_slice(&offset.to_le_bytes());
        let deeper = |at, size| { assert_eq!((at, size), (offset, table.len())); Some(table.clone()) };
        prop_assert_eq!(Headers::parse_with(&head, deeper), Ok(expected));
        let short = Headers::parse_with(&head, |_, _| Some(table[1..].to_vec()));
        prop_assert!(matches!(short, Err(ElfError::Damaged(_))));
        prop_assert!(matches!(Headers::parse(&head), Err(ElfError::Damaged(_))));
    }

    #[test]
    fn damaged_maps_are_read_or_refused(n in 0..PROGRAMS.len(), damage in damage()) {
        let text = maps(PROGRAMS[n].1);
        let damaged = damage.of(text.as_bytes());
        if let Ok(all) = parse_maps(&damaged) {
            prop_assert!(all.windows(2).all(|w| w[0].range.end <= w[1].range.start));
            prop_assert!(all.iter().all(|m| !m.range.is_empty()));
        }
        let text = text.replace('\n', "\nRss:    2048 kB\nAnonHugePages:    2048 kB\nVmFlags: rd ex\n");
        prop_assert!(parse_smaps(text.as_bytes()).is_ok());
        for usage in parse_smaps(&damage.of(text.as_bytes())).into_iter().flatten() {
            prop_assert!(usage.huge() <= usage.mapping.range.len());
        }
    }

    #[test]
    fn maps_are_read_as_written(all in mappings()) {
        let lines: Option<Vec<Vec<u8>>> = all.iter().map(printed).collect();
        prop_assume!(lines.is_some());
        let lines = lines.unwrap();
        let read = parse_maps(&lines.concat());
        prop_assert_eq!(read.as_ref(), Ok(&all));
        let smaps: Vec<u8> =
            lines.into_iter().flat_map(|l| [l, b"Rss: 4 kB\nFilePmdMapped:   2048 kB\n".to_vec()]).flatten().collect();
        let usages = parse_smaps(&smaps).unwrap();
        prop_assert!(usages.iter().all(|u| (u.rss, u.file_huge) == (4096, 2 << 20)));
        prop_assert_eq!(usages.into_iter().map(|u| u.mapping).collect::<Vec<_>>(), all);
    }

    #[test]
    fn the_build_id_is_found_among_other_notes(
        before in vec((vec(any::<u8>(), 0..9), any::<u32>(), vec(any::<u8>(), 0..20)), 0..3),
        id in vec(any::<u8>(), 1..33),
        shift in 0..4_usize,
        damage in damage(),
    ) {
        let mut bytes: Vec<u8> = vec![0; shift];
        for (name, kind, desc) in before {
            bytes.extend(note(&[b"x", &name[..]].concat(), kind, &desc));
        }
        bytes.extend(note(b"GNU\0", 3, &id));
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        prop_assert_eq!(build_id(&bytes[shift..]), Some(hex));
        build_id(&damage.of(&bytes));
    }

    #[test]
    fn the_dynamic_section_is_read_as_written(
        needed in vec(any::<u64>(), 0..5), soname in any::<u64>(), textrel in any::<bool>(), junk in vec(any::<u8>(), 0..40)
    ) {
        let flags = [(30, 4 * u64::from(textrel)), (14, soname), (5, 77), (10, 78)];
        let entries = needed.iter().map(|&n| (1, n)).chain(flags).chain([(0, 0)]);
        let mut bytes: Vec<u8> = entries.flat_map(|(t, v): (u64, u64)| [t.to_le_bytes(), v.to_le_bytes()].concat()).collect();
        bytes.extend(junk);
        let expected = Dynamic { needed, soname: Some(soname), strtab: 77, strsz: 78, textrel, ..Dynamic::default() };
        prop_assert_eq!(dynamic(&bytes), expected);
    }
}

#[test]
fn real_heads_and_maps_are_read() {
    let mut objects = 0;
    for (program, record) in PROGRAMS {
        for (path, head) in crate::common::heads(record) {
            let headers = crate::common::headers(record, path, &head);
            assert!(headers.segments.iter().any(|s| s.prot.exec), "{program}: {path}");
            objects += 1;
        }
        assert!(parse_maps(maps(record).as_bytes()).unwrap().len() > 5, "{program}");
    }
    assert!(objects > 50, "{objects}");
}

#[test]
fn other_kinds_of_file_are_named() {
    let good = all_heads().remove(0);
    let with = |at: usize, byte: u8| {
        let mut head = good.clone();
        head[at] = byte;
        Headers::parse(&head)
    };
    assert!(with(4, 2).is_ok());
    assert_eq!(with(4, 1), Err(ElfError::Class32));
    assert_eq!(with(5, 2), Err(ElfError::BigEndian));
    assert_eq!(Headers::parse(b"#!/bin/sh\n"), Err(ElfError::NotElf("#!/b".into())));
    assert_eq!(Headers::parse(b""), Err(ElfError::NotElf(String::new())));
    for (at, byte) in [(4, 3), (5, 0), (6, 9), (16, 1), (16, 4), (54, 57), (56, 0)] {
        assert!(matches!(with(at, byte), Err(ElfError::Damaged(_))), "byte {at} = {byte}");
    }
    let cut = |len: usize| Headers::parse(&good[..len]);
    assert!((4..good.len()).all(|len| matches!(cut(len), Err(ElfError::Damaged(_)))));
}

/// Returns a record as the store writes it.
fn record() -> Record {
    let held = Identity { device: 1, inode: 2, bytes: 6 << 20, modified: (3, 4), changed: (5, 6) };
    let span = |vaddr, offset| StoredSpan { vaddr, bytes: 2 << 20, offset };
    Record {
        version: VERSION,
        path: "/usr/lib/x.so".into(),
        build_id: Some("c0ffee".into()),
        source: held,
        evidence: Evidence::Bytes,
        public: false,
        page: 2 << 20,
        skew: 0,
        node: None,
        entries: vec![
            EntryFile {
                name: "0f".repeat(32),
                file: held,
                spans: vec![span(0, 2 << 20), span(8 << 20, 4 << 20)],
                names: (0, 0),
            },
            EntryFile {
                name: "1e".repeat(32),
                file: Identity { bytes: 4 << 20, ..held },
                spans: vec![span(2 << 20, 2 << 20)],
                names: (0, 0),
            },
        ],
    }
}

proptest! {
    /// Paths may have any bytes, and none is lost.
    #[test]
    fn records_have_any_path(path in vec(any::<u8>(), 0..200), public: bool) {
        let path = PathBuf::from(OsString::from_vec(path));
        let record = Record { path, public, ..record() };
        prop_assert_eq!(Record::parse(&record.to_json().unwrap()), Ok(record));
    }

    /// Records of another version are ignored, whatever their contents.
    #[test]
    fn records_of_other_versions(version: u32, path in vec(any::<u8>(), 0..20)) {
        prop_assume!(version != VERSION);
        let path = OsString::from_vec(path).into();
        let json = Record { version, path, ..record() }.to_json().unwrap();
        prop_assert_eq!(Record::parse(&json), Err(RecordError::Version(version)));
    }

    /// A damaged record is refused, or has no offset outside of its entry.
    #[test]
    fn records_of_the_store(damage in damage(), range in (any::<u64>(), any::<u64>()), bias in any::<u64>()) {
        let json = damage.of(&record().to_json().unwrap());
        let Ok(record) = Record::parse(&json) else { return Ok(()) };
        for entry in &record.entries {
            prop_assert!(entry.name.bytes().all(|b| b.is_ascii_hexdigit()));
            for span in &entry.spans {
                prop_assert!(span.offset >= record.page && span.offset + span.bytes <= entry.file.bytes);
            }
        }
        let Some(range) = Range::sized(Addr(range.0), range.1) else { return Ok(()) };
        for held in record.held(range, bias) {
            prop_assert!(range.covers(held.range));
            prop_assert!(held.offset + held.range.len() <= record.entries[held.entry].file.bytes);
        }
    }
}
