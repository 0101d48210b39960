// SPDX-License-Identifier: Apache-2.0
//! Files that state as many segments as the kernel takes: twice as many must not be four times the work. Work is counted in
//! instructions, by valgrind.

use crate::common::{Cmd, End, HUGELIFT};
use crate::need;
use std::path::{Path, PathBuf};

/// The most program headers that execve(2) takes: 64 kB of them.
const MOST: usize = 65536 / 56;

/// What the segments are, and how far from one to the next.
#[derive(Clone, Copy, Debug)]
struct Shape {
    flags: &'static [u32],
    bytes: u64,
    apart: u64,
}

const SHAPES: [Shape; 3] = [
    // Read-only data, code and data by turns, with holes between them.
    Shape { flags: &[4, 5, 6], bytes: 0x1000, apart: 0x2000 },
    Shape { flags: &[7, 4], bytes: 0x1000, apart: 0x1000 },
    // Each has a whole huge page.
    Shape { flags: &[5], bytes: 0x20_0000, apart: 0x40_0000 },
];

/// Writes an executable of type `kind` with `count` segments, which ends at once with status 0.
fn write(path: &Path, kind: u16, count: usize, shape: Shape) {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    // xor %edi, %edi; mov $60, %eax; syscall
    const CODE: &[u8] = b"\x31\xff\xb8\x3c\0\0\0\x0f\x05";
    let base = if kind == 2 { 0x40_0000 } else { 0 };
    let head = (64 + 56 * count as u64).next_multiple_of(0x1000);
    let mut segments = vec![(4, 0, base, head), (5, head, base + head, CODE.len() as u64)];
    let (first, data) = (base + 0x4000_0000, 0x20_0000);
    let rest = (0..count as u64 - 2).zip(shape.flags.iter().cycle());
    segments.extend(rest.map(|(n, flags)| (*flags, data, first + n * shape.apart, shape.bytes)));
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend([kind.to_le_bytes(), 62u16.to_le_bytes()].concat());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([base + head, 64, 0].map(u64::to_le_bytes).concat());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend([64, 56, count as u16, 64, 0, 0].map(u16::to_le_bytes).concat());
    for (flags, offset, at, size) in segments {
        bytes.extend([1, flags].map(u32::to_le_bytes).concat());
        bytes.extend([offset, at, at, size, size, 0x1000].map(u64::to_le_bytes).concat());
    }
    let file = std::fs::File::create(path).expect("a file");
    file.write_all_at(&bytes, 0).expect("write");
    file.write_all_at(CODE, head).expect("write");
    file.set_len(data + shape.bytes).expect("its length");
    drop(file);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Returns how many instructions the command executes.
fn instructions(words: &[&str]) -> u64 {
    let outcome = Cmd::new(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", HUGELIFT])
        .args(words)
        .bare();
    assert_eq!(outcome.end, End::Code(0), "{words:?}: {outcome:?}");
    let line = outcome.stderr.lines().find_map(|line| line.split_once("Collected : "));
    line.and_then(|(_, number)| number.trim().parse().ok()).unwrap_or_else(|| panic!("{outcome:?}"))
}

#[test]
fn issue_29_c14_twice_as_many_segments_are_twice_the_work() {
    need!("valgrind");
    let dir = tempfile::TempDir::new().expect("a directory");
    for kind in [2, 3] {
        for shape in SHAPES {
            let path = |count: usize| -> PathBuf { dir.path().join(format!("of-{count}")) };
            for count in [MOST / 2, MOST] {
                write(&path(count), kind, count, shape);
                assert_eq!(Cmd::new([path(count)]).bare().end, End::Code(0), "{kind} {shape:?} {count}");
            }
            let work =
                |count: usize| instructions(&["inspect", "--json", path(count).to_str().expect("UTF-8")]);
            let (half, all) = (work(MOST / 2), work(MOST));
            println!("type {kind}, {shape:?}: {half} and {all} instructions");
            assert!(all < 3 * half, "type {kind}, {shape:?}: {half} and {all} instructions");
        }
    }
}

/// Such a program starts under `hugelift run` as ever.
#[test]
fn issue_29_c14_a_program_with_as_many_segments_as_can_be() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let path = dir.path().join("most");
    for kind in [2, 3] {
        write(&path, kind, MOST, SHAPES[0]);
        let outcome = Cmd::new([&path]).lifted(&[]);
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{kind}: {outcome:?}");
    }
}
