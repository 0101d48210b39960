// SPDX-License-Identifier: Apache-2.0
//! `--span`: the first and last huge page of a part, which the part fills only partly, become huge
//! where nothing else is in them. Nothing that was kept free, guarded or protected is touched.

use crate::common::huge::smaps;
use crate::common::{Cmd, End, HUGELIFT, Held, each_backing, fat, plain};
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::process::Command;

const PAGE: PageSize = PageSize::MB2;

/// Linker flags that start each segment in a huge page of its own, with unmapped space between the
/// segments.
const APART: &[&str] = &["-no-pie", "-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code"];

fn mappings(held: &Held) -> Vec<Mapping> {
    smaps(held.pid()).into_iter().map(|u| u.mapping).collect()
}

/// Returns how many bytes of `range` are on huge pages. Only for mappings that smaps shows as all
/// huge or not huge at all.
fn huge(held: &Held, range: Range) -> u64 {
    let all = smaps(held.pid()).into_iter().filter(|u| u.huge() == u.mapping.range.len());
    all.filter_map(|u| u.mapping.range.intersect(range)).map(Range::len).sum()
}

/// Returns the huge pages that a mapping touches.
fn rounded(range: Range) -> Range {
    Range::new(range.start.align_down(PAGE), range.end.align_up(PAGE).unwrap()).unwrap()
}

#[test]
fn text_and_constants_with_nothing_beside_them() {
    let program = fat("hold").flags(APART).build();
    let bare = Held::start(&Cmd::new([&program]), None, &program);
    let own = mappings(&bare).into_iter().filter(|m| m.path == program && !m.prot.write);
    let large: Vec<Mapping> = own.filter(|m| m.range.len() > 4 << 20).collect();
    assert_eq!(large.len(), 2, "{large:#?}");
    drop(bare);
    each_backing(|options| {
        let held = |span: &str| {
            Held::start(&Cmd::new([&program]), Some(&[options, &["--span", span]].concat()), &program)
        };
        let (inner, outer) = (held("inner"), held("outer"));
        for part in &large {
            let whole = rounded(part.range);
            assert!(whole.len() > part.range.len(), "{part:?} fills its pages: the victim is unsuitable");
            assert_eq!(huge(&inner, whole), part.range.inner(PAGE).unwrap().len(), "inner, {part:?}");
            assert_eq!(huge(&outer, whole), whole.len(), "outer, {part:?}: {:#?}", mappings(&outer));
            for m in mappings(&outer).iter().filter(|m| m.range.intersect(whole).is_some()) {
                assert_eq!((m.prot, m.shared), (part.prot, false), "{m:?}");
            }
            // Space that was unmapped before now holds zeros.
            let memory = std::fs::File::open(format!("/proc/{}/mem", outer.pid())).expect("open mem");
            for gap in whole.minus(part.range) {
                let mut bytes = vec![1; gap.len() as usize];
                memory.read_exact_at(&mut bytes, gap.start.0).expect("read mem");
                assert!(bytes.iter().all(|b| *b == 0), "{gap}");
            }
        }
        for held in [inner, outer] {
            let outcome = held.finish();
            assert_eq!((outcome.stdout.as_str(), outcome.end), ("wrong 0\nready\nwrong 0\n", End::Code(0)));
            assert_eq!(outcome.stderr, "");
        }
    });
}

/// The huge page in which `.data` ends and `.bss` begins belongs to neither part alone, only to
/// both together.
#[test]
fn data_and_bss_together() {
    let program = plain("writes").flags(&["-no-pie", "-DNO_FORK"]).build();
    let seen = |span: &str| {
        let options = ["--parts", "data,bss", "--backing", "thp", "--span", span];
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        let out = Command::new(HUGELIFT)
            .args(["inspect", "--json", "--parts", "data,bss", "--span", span, &held.pid().to_string()])
            .output();
        let seen: Value = serde_json::from_slice(&out.expect("run inspect").stdout).expect("JSON of inspect");
        assert_eq!(held.finish().stdout, "as it should be\n", "{span}");
        let bytes = |part: &str, key: &str| seen["totals"][part][key].as_u64().expect("a number");
        let not_huge = ["data", "bss"].map(|part| bytes(part, "bytes") - bytes(part, "huge_bytes"));
        not_huge[0] + not_huge[1]
    };
    let (inner, outer) = (seen("inner"), seen("outer"));
    assert!(outer + PAGE.bytes() <= inner, "outer leaves {outer} bytes, inner {inner}");
}

/// Without ASLR the program break can be where `.bss` ends. The space behind it stays free for the
/// heap.
#[test]
fn the_heap_keeps_its_space() {
    for flags in [&["-pie"][..], &["-static"], &["-no-pie"], &["-static-pie"], APART] {
        for source in ["heap", "writes"] {
            let victim = if source == "heap" { fat(source) } else { plain(source) };
            let program = victim.flags(flags).build();
            for before in [&[][..], &["setarch", "-R"]] {
                let cmd = Cmd::new([&program]).under(before);
                let outcome = cmd.lifted(&["--parts", "all", "--backing", "thp", "--span", "outer"]);
                assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{cmd:?} {outcome:?}");
                let well = ["as it should be\n", "heap grows"].iter().any(|s| outcome.stdout.starts_with(s));
                assert!(well && !outcome.stdout.contains("wrong 1"), "{outcome:?}");
            }
        }
    }
}

/// A gap below a stack is its guard, whether it is mapped or not. The space below a stack that
/// grows belongs to the stack.
#[test]
fn guards_stay() {
    let early = plain("guards").library().build();
    let program = plain("guards").flags(&["-no-pie", "-Wl,--no-as-needed"]).with(early).build();
    for guard in ["unmapped", "none", "grows", "far"] {
        let cmd = Cmd::new([&program]).env("GUARD", guard);
        let options = ["--parts", "all", "--backing", "thp", "--span", "outer"];
        // The heap may by chance begin too near.
        let outcome = (0..20).map(|_| cmd.lifted(&options)).find(|o| o.end != End::Code(3));
        let outcome = outcome.expect("space behind the program");
        let mapped = format!("mapped behind: {}\n", if guard == "far" { "yes" } else { "no" });
        assert_eq!((outcome.end, &outcome.stdout), (End::Code(0), &mapped), "{guard}: {outcome:?}");
    }
}

/// A lift does what `inspect` predicts for each span mode.
#[test]
fn inspect_predicts_what_each_mode_gains() {
    let program = fat("hold").flags(APART).build();
    let words = ["inspect", "--json", "--backing", "thp", &program.display().to_string()];
    let out = Command::new(HUGELIFT).args(words).output().expect("run inspect");
    let seen: Value = serde_json::from_slice(&out.stdout).expect("JSON of inspect");
    let bytes = |span: &str, key: &str| seen["spans"][span][key].as_u64().unwrap_or_else(|| panic!("{seen}"));
    assert!(bytes("outer", "bytes") > bytes("inner", "bytes"), "{seen}");
    assert_eq!(bytes("inner", "bytes"), bytes("inner", "page_bytes"), "{seen}");
    for span in ["inner", "outer", "auto"] {
        let options = ["--backing", "thp", "--span", span, "--object", &program.display().to_string()];
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        let own = Range::new(Addr(0), Addr(1 << 32)).unwrap();
        let of_pages = huge(&held, own);
        assert_eq!(of_pages, bytes(span, "page_bytes"), "{span}: {seen}");
    }
    let text = Command::new(HUGELIFT).arg("inspect").arg(&program).output().expect("run inspect");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.lines().any(|l| l.starts_with("--span  inner ") && l.contains(" on pages of ")), "{text}");
}
