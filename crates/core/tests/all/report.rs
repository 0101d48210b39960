// SPDX-License-Identifier: Apache-2.0
//! The report against snapshots made by hand and at random.

use crate::common::pool;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::apply::{Outcome, SpanOutcome};
use hugelift_core::elf::{self, Headers, Segment};
use hugelift_core::maps::{FileId, Mapping, Prot};
use hugelift_core::plan::{Plan, plan};
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::report::Report;
use hugelift_core::smaps::{Usage, parse_smaps};
use hugelift_core::snapshot::{Machine, Object, Part, Snapshot};
use hugelift_core::target::Fault;
use proptest::prelude::*;
use std::path::PathBuf;

const MB: u64 = 1 << 20;

fn machine() -> Machine {
    Machine { pools: vec![pool(PageSize::MB2, 3)], memory_left: 1 << 40, ..crate::common::machine() }
}

/// One object whose segments lie at `start` one after the other.
fn object(number: u64, start: u64, segments: &[(Prot, u64)]) -> (Object, Vec<Mapping>) {
    let file = FileId { major: 8, minor: 1, inode: number };
    let path = PathBuf::from(format!("/lib/object{number}.so"));
    let (mut at, mut mappings, mut loads) = (0, Vec::new(), Vec::new());
    for &(prot, size) in segments {
        let range = Range::sized(Addr(start + at), size).unwrap();
        loads.push(Segment { prot, vaddr: at, memsz: size, filesz: size, offset: at, align: 4096 });
        let path = path.clone();
        mappings.push(Mapping { range, prot, shared: false, offset: at, file, path, deleted: false });
        at += size;
    }
    let headers = Headers {
        machine: elf::Machine::X86_64,
        relocatable: true,
        entry: 0,
        segments: loads,
        relro: None,
        interp: None,
        dynamic: None,
        notes: vec![],
    };
    let executable = number == 1;
    let object =
        Object { path, file, build_id: Some("ab".into()), bias: start, headers, executable, textrel: false };
    (object, mappings)
}

fn snapshot(list: &[(u64, &[(Prot, u64)])]) -> Snapshot {
    let (mut objects, mut mappings) = (Vec::new(), Vec::new());
    for (number, (start, segments)) in (1..).zip(list) {
        let (object, more) = object(number, *start, segments);
        objects.push(object);
        mappings.extend(more);
    }
    // The stack, far away: between it and the objects the planner finds room.
    let range = Range::sized(Addr(1 << 40), MB).unwrap();
    let path = PathBuf::from("[stack]");
    let file = FileId::default();
    mappings.push(Mapping { range, prot: Prot::RW, shared: false, offset: 0, file, path, deleted: false });
    Snapshot::new(objects, mappings, machine())
}

fn usage(mapping: &Mapping) -> Usage {
    let line = format!("{:x}-{:x} r-xp 0 08:01 5 /x\n", mapping.range.start.0, mapping.range.end.0);
    Usage { mapping: mapping.clone(), ..parse_smaps(line.as_bytes()).unwrap().remove(0) }
}

fn sums_agree(report: &Report) {
    let mut bytes = 0;
    for part in report.objects.iter().flat_map(|o| &o.parts) {
        let skipped: u64 = part.skips.iter().map(|s| s.bytes).sum();
        assert_eq!(part.huge_bytes + skipped, part.bytes, "{part:?}");
        assert_eq!(part.end - part.start, part.bytes);
        assert_eq!(part.backing.is_some(), part.huge_bytes > 0, "{part:?}");
        assert!(part.liftable_bytes <= part.bytes && part.skips.iter().all(|s| s.bytes > 0));
        bytes += part.bytes;
    }
    assert_eq!(report.totals.values().map(|t| t.bytes).sum::<u64>(), bytes);
}

/// 9 MB of text from 1 MB on: four whole huge pages and two edges.
fn nine() -> Snapshot {
    snapshot(&[(MB, &[(Prot::RX, 9 * MB), (Prot::R, MB)])])
}

#[test]
fn nothing_is_huge_without_smaps() {
    let snapshot = nine();
    let report = Report::new(&snapshot, None, &plan(&snapshot, &Policy::default()), None);
    sums_agree(&report);
    let text = &report.objects[0].parts[0];
    assert_eq!((text.part, text.start, text.bytes), (Part::Text, MB, 9 * MB));
    assert_eq!((text.liftable_bytes, text.huge_bytes, text.backing), (8 * MB, 0, None));
    let skips: Vec<_> = text.skips.iter().map(|s| (s.reason, s.bytes)).collect();
    assert_eq!(skips, [("kept-free", MB), ("not-lifted", 8 * MB)]);
    assert!(report.objects[0].parts[1].skips[0].reason == "too-small");
}

#[test]
fn after_a_lift_every_byte_of_the_span_is_huge_and_none_is_a_skip() {
    let before = nine();
    let plan = plan(&before, &Policy::default());
    // The lift has split the text in three.
    let text = &before.mappings[0];
    let cut = |a: u64, b: u64| {
        let range = Range::new(Addr(a), Addr(b)).unwrap();
        usage(&Mapping { range, ..text.clone() })
    };
    let lifted = Usage { private_hugetlb: 8 * MB, ..cut(2 * MB, 10 * MB) };
    let all = [cut(MB, 2 * MB), lifted, usage(&before.mappings[1])];
    let spans =
        plan.spans.iter().map(|_| SpanOutcome { lifted: Some(Backing::Hugetlb), ..SpanOutcome::default() });
    let outcome = Outcome { spans: spans.collect(), ..Outcome::default() };
    let report = Report::new(&before, Some(&all), &plan, Some(&outcome));
    sums_agree(&report);
    let text = &report.objects[0].parts[0];
    assert_eq!((text.huge_bytes, text.backing), (8 * MB, Some(Backing::Hugetlb)));
    assert_eq!(text.skips.iter().map(|s| (s.reason, s.bytes)).collect::<Vec<_>>(), [("kept-free", MB)]);
    assert_eq!(report.totals[&Part::Text].huge_bytes, 8 * MB);
}

#[test]
fn what_the_calls_promised_but_smaps_does_not_show_is_a_failure() {
    let before = nine();
    let plan = plan(&before, &Policy::default());
    let spans =
        plan.spans.iter().map(|_| SpanOutcome { lifted: Some(Backing::Thp), ..SpanOutcome::default() });
    let outcome = Outcome { spans: spans.collect(), ..Outcome::default() };
    let all: Vec<Usage> = before.mappings.iter().map(usage).collect();
    let report = Report::new(&before, Some(&all), &plan, Some(&outcome));
    sums_agree(&report);
    assert_eq!(report.totals[&Part::Text].huge_bytes, 0);
    assert!(report.objects[0].parts[0].skips.iter().any(|s| s.reason == "fragmented" && s.hint.is_some()));
}

/// The pool as far as it goes, then transparent huge pages.
fn pool_first() -> Policy {
    Policy { backings: vec![Backing::Hugetlb, Backing::Thp], ..Policy::default() }
}

#[test]
fn the_last_failure_is_the_reason() {
    let before = nine();
    let plan = plan(&before, &pool_first());
    assert_eq!(plan.spans.len(), 2, "the pool has three of four pages");
    let fault = |errno| Fault::Call { call: "mmap", range: Range::default(), errno };
    let failed = SpanOutcome {
        failures: vec![(Backing::Hugetlb, fault(12)), (Backing::Thp, fault(1))],
        ..SpanOutcome::default()
    };
    let all: Vec<Usage> = before.mappings.iter().map(usage).collect();
    let lost = Outcome { spans: vec![failed], lost: Some("the program ended".into()), leftovers: vec![] };
    let report = Report::new(&before, Some(&all), &plan, Some(&lost));
    sums_agree(&report);
    assert!(report.objects[0].parts[0].skips.iter().any(|s| s.detail.contains("the program ended")));
    let kept = Outcome { lost: None, ..lost };
    let report = Report::new(&before, Some(&all), &plan, Some(&kept));
    let details: Vec<&str> = report.objects[0].parts[0].skips.iter().map(|s| s.detail.as_str()).collect();
    assert!(details.iter().any(|d| d.starts_with("thp: mmap")), "{details:?}");
}

#[test]
fn a_mapping_over_two_parts_is_shared_out_by_whole_huge_pages() {
    // One RX mapping over a text and a rodata segment, as old linkers make it.
    let mut snapshot = snapshot(&[(2 * MB, &[(Prot::RX, 6 * MB), (Prot::R, 2 * MB)])]);
    let whole = Range::new(Addr(2 * MB), Addr(10 * MB)).unwrap();
    snapshot.mappings = vec![Mapping { range: whole, ..snapshot.mappings[0].clone() }];
    let used = |file_huge| [Usage { file_huge, ..usage(&snapshot.mappings[0]) }];
    for (huge, text, rodata) in [(8, 6, 2), (4, 2, 2), (2, 0, 2), (0, 0, 0), (6, 4, 2)] {
        let report = Report::new(&snapshot, Some(&used(huge * MB)), &Plan::default(), None);
        sums_agree(&report);
        let got = (report.totals[&Part::Text].huge_bytes, report.totals[&Part::Rodata].huge_bytes);
        assert_eq!(got, (text * MB, rodata * MB), "of {huge} MB");
    }
}

#[test]
fn one_command_helps_all_that_the_pool_is_short_of() {
    let mut snapshot = snapshot(&[(2 * MB, &[(Prot::RX, 8 * MB), (Prot::R, 4 * MB)])]);
    snapshot.machine.thp_page = None;
    let report = Report::new(&snapshot, None, &plan(&snapshot, &pool_first()), None);
    sums_agree(&report);
    let short = report.objects[0].parts.iter().flat_map(|p| &p.skips).filter(|s| s.reason == "pool-short");
    let hints: Vec<_> = short.map(|s| s.hint.as_deref().unwrap()).collect();
    let command = "hugelift pool set 2M=6";
    assert_eq!(hints, [command, command], "six pages in all: four of text, two of rodata");
}

#[test]
fn json_is_as_documented() {
    let snapshot = nine();
    let report = Report::new(&snapshot, None, &plan(&snapshot, &Policy::default()), None);
    let json = serde_json::to_string(&report).unwrap();
    let head = r#"{"version":1,"objects":[{"path":"/lib/object1.so","build_id":"ab","parts":[{"part":"text","start":1048576,"bytes":9437184,"liftable_bytes":8388608,"huge_bytes":0,"backing":null,"skips":[{"reason":"kept-free","bytes":1048576,"hint":null,"#;
    assert!(json.starts_with(head), "{json}");
    assert!(
        json.contains(
            r#""totals":{"text":{"bytes":9437184,"liftable_bytes":8388608,"huge_bytes":0},"rodata":"#
        )
    );
}

fn prots() -> impl Strategy<Value = Prot> {
    let wx = Prot { write: true, ..Prot::RX };
    prop_oneof![4 => Just(Prot::RX), 3 => Just(Prot::R), 2 => Just(Prot::RW), 1 => Just(wx)]
}

/// Segments in base pages, the gap before the object, and how its mappings are cut.
type Layout = (u64, Vec<(Prot, u64)>);

fn layouts() -> impl Strategy<Value = Vec<Layout>> {
    let segments = prop::collection::vec((prots(), 1u64..3000), 1..5);
    prop::collection::vec((1u64..2000, segments), 1..4)
}

proptest! {
    #[test]
    fn every_byte_is_counted_once(
        layouts in layouts(),
        // Of each mapping: where it is cut, how huge its pieces are and by which backing.
        cuts in prop::collection::vec((0u64..3000, any::<u64>(), any::<u64>(), 0..5), 16),
        glue in any::<bool>(),
        odd in any::<bool>(),
        with_outcome in any::<bool>(),
        lifted in any::<bool>(),
    ) {
        let mut at = MB;
        let mut list = Vec::new();
        for (gap, segments) in &layouts {
            at += gap * 4096;
            let sized: Vec<_> = segments.iter().map(|(p, n)| (*p, n * 4096)).collect();
            let start = at;
            at += sized.iter().map(|(_, n)| n).sum::<u64>();
            list.push((start, sized));
        }
        let borrowed: Vec<_> = list.iter().map(|(s, v)| (*s, v.as_slice())).collect();
        let mut snapshot = snapshot(&borrowed);
        if glue {
            // Mappings that span several parts.
            let mut joined: Vec<Mapping> = Vec::new();
            for m in snapshot.mappings.drain(..) {
                match joined.last_mut() {
                    Some(last) if last.range.end == m.range.start && last.file == m.file => last.range.end = m.range.end,
                    _ => joined.push(m),
                }
            }
            snapshot.mappings = joined;
        }
        let plan = plan(&snapshot, &Policy::default());
        let mut all = Vec::new();
        for (i, m) in snapshot.mappings.iter().enumerate() {
            let (cut, a, b, backing) = cuts[i % cuts.len()];
            let middle = Addr((m.range.start.0 + cut * 4096).min(m.range.end.0));
            let halves = [Range { start: m.range.start, end: middle }, Range { start: middle, end: m.range.end }];
            for (range, seed) in halves.into_iter().zip([a, b]).filter(|(r, _)| !r.is_empty()) {
                let room = if odd { range.len() } else { range.inner(PageSize::MB2).map_or(0, Range::len) };
                let unit = if odd { 4096 } else { 2 * MB };
                let huge = (seed % (room / unit + 1)) * unit;
                let mut used = usage(&Mapping { range, ..m.clone() });
                match backing {
                    0 => used.anon_huge = huge,
                    1 => used.file_huge = huge,
                    2 => used.shmem_huge = huge,
                    3 => used.private_hugetlb = huge,
                    _ => used.shared_hugetlb = huge,
                }
                all.push(used);
            }
        }
        let span = |_| SpanOutcome {
            lifted: lifted.then_some(Backing::Thp),
            failures: vec![(Backing::Thp, Fault::NotHuge { got: 0, want: 1 })],
            begun: 0,
        };
        let outcome = Outcome { spans: plan.spans.iter().map(span).collect(), ..Outcome::default() };
        let report = Report::new(&snapshot, Some(&all), &plan, with_outcome.then_some(&outcome));
        sums_agree(&report);
        let seen: u64 = all.iter().map(Usage::huge).sum();
        let reported: u64 = report.totals.values().map(|t| t.huge_bytes).sum();
        prop_assert!(reported <= seen, "reported {reported} of {seen}");
        if !glue {
            // Each mapping lies inside one part: nothing may get lost either.
            prop_assert_eq!(reported, seen);
        }
    }
}
