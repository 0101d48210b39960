// SPDX-License-Identifier: Apache-2.0
//! `--page-size`: several sizes in one program, and sizes below that of a PMD entry.

use crate::common::guard::{Exclusive, Settings};
use crate::common::huge::{assert_no_wx, assert_unchanged, pieces, smaps};
use crate::common::{Cmd, End, Held, fat};
use crate::{need_root, skip};
use hugelift_core::addr::PageSize;
use std::fs;
use std::path::Path;

const SMALL: u64 = 64 << 10;
const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
const MADE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/anon_fault_alloc";

fn made() -> u64 {
    fs::read_to_string(MADE).expect(MADE).trim().parse().expect("a number")
}

/// Sets the switch; evaluates to the guard that restores it.
macro_rules! switched {
    ($to:expr) => {{
        need_root!();
        let exclusive = match Exclusive::take() {
            Ok(exclusive) => exclusive,
            Err(why) => skip!("{why}"),
        };
        if !Path::new(SWITCH).exists() || !Path::new(MADE).exists() {
            skip!("needs a kernel with transparent pages of 64 kB (Linux 6.8)");
        }
        let settings = Settings::keep(&[SWITCH]).expect(SWITCH);
        fs::write(SWITCH, $to).expect(SWITCH);
        (settings, exclusive)
    }};
}

#[test]
fn edges_go_to_smaller_pages() {
    let _settings = switched!("madvise");
    for flags in [&["-no-pie"][..], &["-static-pie"]] {
        let program = fat("hold").flags(flags).build();
        let objects = [program.clone()];
        let before = made();
        let options = ["--backing", "thp", "--page-size", "auto"];
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        let pieces = pieces(held.pid(), &objects);
        let usage = smaps(held.pid());
        let (mut huge, mut edges) = (0, 0);
        for piece in &pieces {
            let inner = piece.inner.unwrap_or_default();
            assert_eq!(piece.huge, inner.len(), "{piece:?}");
            huge += piece.huge;
            // The whole pages of 64 kB around `inner` are anonymous copies as well.
            let Some(small) = piece.range.inner(PageSize::new(SMALL).expect("64 kB")) else { continue };
            for edge in small.minus(inner) {
                let here = usage.iter().filter(|u| u.mapping.range.intersect(edge).is_some());
                for mapping in here {
                    assert!(mapping.mapping.path.as_os_str().is_empty(), "{edge}: {mapping:?}");
                    assert_eq!((mapping.rss, mapping.file_huge), (mapping.mapping.range.len(), 0), "{edge}");
                }
                edges += edge.len() / SMALL;
            }
        }
        assert!(huge > 0 && edges > 3, "{flags:?}: {pieces:?}");
        // Memory may be too fragmented for some of them: the kernel then gives smaller pages.
        assert!(made() - before >= edges / 2, "{} of {edges} pages of 64 kB", made() - before);
        assert_unchanged(held.pid(), &pieces);
        assert_no_wx(held.pid(), &pieces);
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.own_lines()), (End::Code(0), Vec::<&str>::new()));
    }
}

#[test]
fn what_smaps_does_not_tell_is_not_called_huge() {
    let _settings = switched!("madvise");
    let program = fat("sums").flags(&["-no-pie"]).build();
    let file = tempfile::NamedTempFile::new().unwrap();
    let words = ["--backing", "thp", "--page-size", "64k", "-v", "--report", file.path().to_str().unwrap()];
    let outcome = Cmd::new([&program]).lifted(&words);
    assert_eq!(outcome.end, End::Code(0));
    let lines = outcome.own_lines();
    assert!(lines.len() == 1 && lines[0].contains(" more on smaller pages)"), "{lines:?}");
    // Where huge pages also fit, the kernel may have used some. smaps shows only those.
    let report: serde_json::Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
    let text = &report["totals"]["text"];
    let (huge, whole) = (text["huge_bytes"].as_u64().unwrap(), text["liftable_bytes"].as_u64().unwrap());
    assert!(huge.is_multiple_of(2 << 20) && huge < whole, "{text}");
}

#[test]
fn a_size_that_is_switched_off() {
    let _settings = switched!("never");
    let program = fat("sums").flags(&["-no-pie"]).build();
    let cmd = Cmd::new([&program]);
    let outcome = cmd.lifted(&["--backing", "thp", "--page-size", "64k"]);
    let lines = outcome.own_lines();
    let hint = format!("echo madvise > {SWITCH}");
    assert!(outcome.end == End::Code(0) && lines.len() == 1 && lines[0].contains(&hint), "{outcome:?}");
    // As one of several sizes it is not necessary.
    let mixed = cmd.lifted(&["--backing", "thp", "--page-size", "auto", "--strict"]);
    assert_eq!((mixed.end, mixed.own_lines()), (End::Code(0), Vec::<&str>::new()));
}
