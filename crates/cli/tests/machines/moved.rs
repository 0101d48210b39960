// SPDX-License-Identifier: Apache-2.0
//! Suite: position-independent programs that are moved to where the page cache's huge folios fit,
//! on the file systems of this machine. The lines that start with "moved:" are what
//! docs/filesystems.md was made of.

use crate::files::disk;
use crate::grow::grow_at;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks};
use crate::start::{Run, compare};

/// A static one may have the vdso between its far segments, and then stays.
const KIND: &str = "vm_big.pie";
const OPTIONS: [&str; 2] = ["--backing", "pagecache"];
/// Larger huge pages would fill the disks of a test machine.
const LARGEST: u64 = 32 << 20;

/// Runs it three times from a disk of this kind: the first start primes it.
fn from(kind: &str, check: impl Fn(&[Run; 3], u64)) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let Some(page) = thp().filter(|page| *page <= LARGEST) else { lacks!("no huge pages of a size for it") };
    // With something beside the huge pages in the same mapping.
    let big = grow_at(&dir, KIND, [2 * page + (128 << 10), page], page);
    let runs = [(); 3].map(|()| compare(&OPTIONS, &big.path));
    for run in &runs {
        let huge = run.look().huge_in_all(From::Any);
        println!("moved: from {kind}: {} of 3 pages huge {}", huge / page, run.stderr.trim());
    }
    check(&runs, page);
}

/// Once it is primed: each start at another place, all of them huge. On Linux 6.1 the start that
/// primes stays where it is, and says so.
fn all_moved_from(kind: &str) {
    from(kind, |[first, second, third], page| {
        match first.look().huge_in_all(From::Any) {
            0 => first.assert_line("its page cache is not in huge folios"),
            _ => first.look().assert_lifted(page, From::Any),
        }
        for run in [second, third] {
            run.look().assert_lifted(page, From::Any);
            assert_eq!(run.look().huge_in_all(From::Thp), 0, "nothing is copied");
            run.assert_silent();
        }
        let [a, b] = [second, third].map(|run| run.look().text.start);
        assert!(a != b && a % page == 0 && b % page == 0, "{a:x} {b:x}");
    });
}

/// All of it, or nothing and the reason.
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
