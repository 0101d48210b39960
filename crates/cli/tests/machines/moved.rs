// SPDX-License-Identifier: Apache-2.0
//! Suite: position-independent programs that are moved to where the page cache's huge folios fit,
//! on the file systems of this machine. The lines that start with "moved:" are the source of
//! docs/filesystems.md.

use crate::files::disk;
use crate::grow::grow_at;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks};
use crate::start::{Run, compare};

/// Not a static one: its far segments may have the vdso between them, and then it cannot be moved.
const KIND: &str = "vm_big.pie";
const OPTIONS: [&str; 2] = ["--backing", "pagecache"];
/// Larger huge pages would fill the disks of a test machine.
const LARGEST: u64 = 32 << 20;

/// Runs the program three times from a disk of this kind. The first start primes it.
fn from(kind: &str, check: impl Fn(&[Run; 3], u64)) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let Some(page) = thp().filter(|page| *page <= LARGEST) else { lacks!("no huge pages of 32 MB or less") };
    // The mapping also holds 128 kB beside its huge pages.
    let big = grow_at(&dir, KIND, [2 * page + (128 << 10), page], page);
    let runs = [(); 3].map(|()| compare(&OPTIONS, &big.path));
    for run in &runs {
        let huge = run.look().huge_in_all(From::Any);
        println!("moved: from {kind}: {} of 3 pages huge {}", huge / page, run.stderr.trim());
    }
    check(&runs, page);
}

/// Once the program is primed, each start is at another address and all of it is huge. On Linux 6.1
/// the start that primes it does not move it, and hugelift says so.
fn all_moved_from(kind: &str) {
    from(kind, |[first, second, third], page| {
        match first.look().huge_in_all(From::Any) {
            0 => first.assert_line("its page cache is not in huge folios"),
            _ => first.look().assert_lifted(page, From::Any),
        }
        for run in [second, third] {
            run.look().assert_lifted(page, From::Any);
            assert_eq!(run.look().huge_in_all(From::Thp), 0, "something was copied");
            run.assert_silent();
        }
        let [a, b] = [second, third].map(|run| run.look().text.start);
        assert!(a != b && a % page == 0 && b % page == 0, "{a:x} {b:x}");
    });
}

/// Either all of it is huge, or nothing is and hugelift gives the reason.
fn all_or_none_from(kind: &str) {
    from(kind, |runs, page| {
        for run in runs {
            match run.look().huge_in_all(From::Any) {
                0 => run.assert_line(&format!("no huge pages from its file system ({kind})")),
                _ => run.look().assert_lifted(page, From::Any),
            }
        }
    });
}

#[test]
fn from_xfs() {
    all_moved_from("xfs");
}

#[test]
fn from_a_loop_mounted_image() {
    all_moved_from("loop");
}

#[test]
fn from_ext4() {
    all_or_none_from("ext4");
}

#[test]
fn from_btrfs() {
    all_or_none_from("btrfs");
}
