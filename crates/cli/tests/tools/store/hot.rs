// SPDX-License-Identifier: Apache-2.0
//! Tests that processes which use different code share what they have in common.

use super::*;
use crate::common::run::PATIENCE;
use crate::heat::Pages;
use crate::heat_lift::wide;
use crate::need_root;
use hugelift_core::addr::{Addr, Range};
use std::time::Instant;

impl Shelf {
    /// Runs a command for a process until it has seen enough of it: the tests may have little of the machine.
    fn attach(&self, pages: &Pages, more: &[&str]) -> Outcome {
        let begun = Instant::now();
        loop {
            let pid = pages.pid();
            let words = [&[HUGELIFT, "attach"][..], &SHARED, more, &[&pid]].concat();
            let outcome = self.cmd(words).bare();
            if !outcome.stderr.contains("none of them in code of its files") || begun.elapsed() > PATIENCE {
                assert_eq!((outcome.end, &*outcome.stderr), (End::Code(0), ""), "{outcome:?}");
                return outcome;
            }
        }
    }

    /// Returns the names of the entries of the program, and their bytes.
    fn held(&self) -> (Vec<String>, u64) {
        let entries = self.entries();
        let is_its = |entry: &&Value| entry["object"].as_str().is_some_and(|path| path.contains("pages"));
        let Some(entry) = entries.iter().find(is_its) else { return (vec![], 0) };
        assert_eq!((&entry["state"], &entry["huge_bytes"]), (&"good".into(), &entry["bytes"]), "{entry}");
        let names = entry["files"].as_array().expect("names").iter();
        (
            names.map(|name| name.as_str().expect("a name").into()).collect(),
            entry["bytes"].as_u64().expect("bytes"),
        )
    }
}

/// Returns which entry each huge page of the program's code is mapped from, by the number of the page from that of its hot
/// functions.
fn mapped(shelf: &Shelf, pages: &Pages, names: &[String]) -> Vec<(i64, usize)> {
    let usages = smaps(pages.pid().parse().expect("a number"));
    let entry_of = |n: i64| {
        let start = pages.start.checked_add_signed(n * PAGE.cast_signed()).expect("an address");
        let range = Range::sized(Addr(start), PAGE).expect("a range");
        let of_store = |u: &&hugelift_core::smaps::Usage| {
            u.mapping.range.covers(range) && u.mapping.path.starts_with(&shelf.path)
        };
        let usage = usages.iter().find(of_store)?;
        assert_eq!(usage.shmem_huge, usage.mapping.range.len(), "{usage:?}");
        let name = usage.mapping.path.file_name()?.to_str()?;
        Some((n, names.iter().position(|known| known == name).expect("an entry of the program")))
    };
    (-2..5).filter_map(entry_of).collect()
}

#[test]
fn issue_31_4_processes_with_different_heat_share_what_they_have_in_common() {
    need_root!();
    let shelf = shelf!();
    let hot = ["--sample", "2"];
    // The first uses one huge page of code, the second this one and the next.
    let (first, second) = (Pages::of(&wide(), &["64"]), Pages::of(&wide(), &["1000"]));
    shelf.attach(&first, &hot);
    let (one, bytes) = shelf.held();
    assert_eq!((one.len(), bytes, mapped(&shelf, &first, &one)), (1, PAGE, vec![(0, 0)]));
    shelf.attach(&second, &hot);
    let (two, bytes) = shelf.held();
    assert_eq!((&two[..1], two.len(), bytes), (&one[..], 2, 2 * PAGE));
    assert_eq!(mapped(&shelf, &second, &two), [(0, 0), (1, 1)]);
    // What there is costs nothing more, hot or not.
    let third = Pages::of(&wide(), &["64"]);
    shelf.attach(&third, &hot);
    assert_eq!((shelf.held(), mapped(&shelf, &third, &two)), ((two.clone(), bytes), vec![(0, 0), (1, 1)]));
    // All of the code is the rest besides.
    shelf.attach(&first, &["--whole"]);
    let (three, _) = shelf.held();
    assert_eq!((&three[..2], three.len()), (&two[..], 3));
    let all = mapped(&shelf, &first, &three);
    assert_eq!(all, [(-2, 2), (-1, 2), (0, 0), (1, 1), (2, 2), (3, 2), (4, 2)]);
    // One entry has pages on both sides of what is hot.
    let fourth = Pages::of(&wide(), &["64"]);
    shelf.attach(&fourth, &hot);
    assert_eq!(mapped(&shelf, &fourth, &three), all);
    let (status, said) = shelf.run(&["verify"]);
    assert_eq!((status, said.matches("good: ").count()), (Some(0), shelf.entries().len()), "{said}");
    for pages in [&first, &second, &third, &fourth] {
        let objects = [wide()];
        let pid = pages.pid().parse().expect("a number");
        let pieces = pieces(pid, &objects);
        assert_unchanged(pid, &pieces);
        assert_no_wx(pid, &pieces);
        let restored = shelf.cmd([HUGELIFT, "restore", &pages.pid()]).bare();
        assert_eq!((restored.end, mapped(&shelf, pages, &three)), (End::Code(0), vec![]), "{restored:?}");
    }
}

/// Each entry is needed to trust the others: they are made again together.
#[test]
fn issue_31_4_a_damaged_entry_takes_the_others_of_its_object_with_it() {
    need_root!();
    for damage in [0, 1] {
        let shelf = shelf!();
        let (first, second) = (Pages::of(&wide(), &["64"]), Pages::of(&wide(), &["1000"]));
        shelf.attach(&first, &["--sample", "2"]);
        shelf.attach(&second, &["--sample", "2"]);
        let (names, _) = shelf.held();
        assert_eq!(names.len(), 2);
        let path = shelf.path.join(&names[damage]);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(b"damage", PAGE + 4096).expect("write");
        drop(file);
        fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("chmod");
        let third = Pages::of(&wide(), &["64"]);
        shelf.attach(&third, &["--sample", "2"]);
        let (now, bytes) = shelf.held();
        assert_eq!((now.len(), bytes, mapped(&shelf, &third, &now)), (1, PAGE, vec![(0, 0)]), "{damage}");
        // It has the bytes of the first, and so its name.
        assert!(now == names[..1] && !shelf.names().contains(&names[1]), "{now:?}");
        let pid = third.pid().parse().expect("a number");
        assert_unchanged(pid, &pieces(pid, &[wide()]));
    }
}

/// Each entry is opened at each start.
#[test]
fn issue_31_4_an_object_has_at_most_sixteen_entries() {
    need_root!();
    let shelf = shelf!();
    let program = victim("hot");
    let is_its = |entry: &Value| entry["object"].as_str() == program.to_str();
    let names = || {
        let entries = shelf.entries();
        entries
            .iter()
            .find(|entry| is_its(entry))
            .map_or(0, |entry| entry["files"].as_array().expect("names").len())
    };
    // Each larger budget takes a further huge page of the block.
    for block in 1..15 {
        let held = Held::start_busy(&Cmd::new([&program]).args([&*block.to_string(), "run"]), None, &program);
        for budget in ["2M", "4M", "6M"].into_iter().filter(|_| names() < 16) {
            let attach = [HUGELIFT, "attach", "--backing", "shared", "--sample", "500ms", "--budget", budget];
            let before = names();
            shelf.cmd(attach).arg(held.pid().to_string()).bare();
            assert!(names() <= before + 1);
        }
        assert_eq!(held.finish().end, End::Code(0));
    }
    assert_eq!(names(), 16, "{:?}", shelf.entries());
    let held = Held::start(&Cmd::new([&program]).arg("wait"), None, &program);
    let attached =
        shelf.cmd([HUGELIFT, "attach", "--whole", "--backing", "shared"]).arg(held.pid().to_string()).bare();
    assert!(attached.stderr.contains(" in 16 entries already"), "{attached:?}");
    // What the entries have is mapped.
    let huge: u64 = smaps(held.pid()).iter().map(|usage| usage.shmem_huge).sum();
    let entries = shelf.entries();
    let bytes = entries.iter().find(|entry| is_its(entry)).and_then(|entry| entry["bytes"].as_u64());
    assert_eq!(Some(huge), bytes, "{entries:?}");
    assert_eq!((names(), held.finish().end), (16, End::Code(0)));
}
