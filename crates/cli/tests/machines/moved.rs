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

const KINDS: [&str; 2] = ["vm_big.pie", "vm_big.static-pie"];
const OPTIONS: [&str; 2] = ["--backing", "pagecache"];
/// Larger huge pages would fill the disks of a test machine.
const LARGEST: u64 = 32 << 20;

/// Runs each kind twice from a disk of this kind.
fn from(kind: &str, check: impl Fn(&[Run; 2], u64)) {
    let _alone = alone();
    let Some(dir) = disk(kind) else { lacks!("no {kind} disk") };
    let Some(page) = thp().filter(|page| *page <= LARGEST) else { lacks!("no huge pages of a size for it") };
    for victim in KINDS {
        let big = grow_at(&dir, victim, [2 * page, page], page);
        let runs = [(); 2].map(|()| compare(&OPTIONS, &big.path));
        let huge = runs[1].look().huge_in_all(From::Any);
        println!("moved: {victim} from {kind}: {} of 3 pages huge {}", huge / page, runs[1].stderr.trim());
        check(&runs, page);
    }
}

/// Each start at another place, all of them huge.
#[test]
fn from_xfs() {
    from("xfs", |runs, page| {
        for run in runs {
            run.look().assert_lifted(page, From::Any);
            assert_eq!(run.look().huge_in_all(From::Thp), 0, "nothing is copied");
            run.assert_silent();
        }
        let [first, second] = [0, 1].map(|i: usize| runs[i].look().text.start);
        assert!(first != second && first % page == 0 && second % page == 0, "{first:x} {second:x}");
    });
}

/// All of it, or nothing and the reason.
#[test]
fn from_ext4() {
    from("ext4", |runs, page| {
        for run in runs {
            match run.look().huge_in_all(From::Any) {
                0 => run.assert_line("no huge pages from its file system (ext4)"),
                _ => run.look().assert_lifted(page, From::Any),
            }
        }
    });
}
