// SPDX-License-Identifier: Apache-2.0
//! docs/reference/reasons.md lists every reason that the code can give, with what helps.
//! `BLESS=1 cargo test -p hugelift-core --test all reasons` writes it anew.

use hugelift_core::addr::PageSize;
use hugelift_core::advice::About;
use hugelift_core::attribute::Attribute;
use hugelift_core::policy::Backing;
use hugelift_core::pressure::Pressure;
use hugelift_core::prime::{Holder, Keeps, Obstacle};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{MemoryLimit, NotStored, Part, ThpOff};
use hugelift_core::target::Fault;
use std::collections::BTreeSet;
use std::path::Path;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/reasons.md");

const HEAD: &str = "\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Reasons, and what helps

This page is made from the code (`crates/core/tests/all/reasons.rs`). The words are those that hugelift prints, with
values and names of an example: the program `server`, and its file `/usr/bin/server`. hugelift prints the command
with the names and values of your program. A dash means that no command changes it.

## Why memory is not lifted

`hugelift inspect`, `run -v` and `attach` print these. JSON has the word of the first column.

";

const BETWEEN: &str = "
## Why a file's page cache is not huge

`hugelift prime`, `attach --parts files` and `inspect FILE` print these. JSON has the word of the first column.

";

/// One of each reason; several where what helps depends on the details.
fn reasons() -> Vec<Reason> {
    let page = PageSize::MB2;
    let limit = |left| MemoryLimit {
        source: "/sys/fs/cgroup/server/memory.max".into(),
        bytes: 512 << 20,
        left,
        counts_pools: false,
    };
    let group = |left| Reason::GroupLimit { limit: limit(left), spare: 0, need: 24 << 20 };
    let not_stored = NotStored { why: "there is no place for a store".into(), hint: None };
    vec![
        Reason::PartNotAsked(Part::Rodata),
        Reason::PartNotAsked(Part::Data),
        Reason::Excluded,
        Reason::TooSmall(page),
        Reason::NotAligned(page),
        Reason::Neighbour(page),
        Reason::Beside(page),
        Reason::KeptFree(page),
        Reason::WritableCode,
        Reason::Protection,
        Reason::TextRelocations,
        Reason::Patched,
        Reason::PoolShort { page, free: 2, need: 12, total: 8 },
        Reason::NoPool(page),
        Reason::LostAtFork(page),
        Reason::Special(Attribute::Locked),
        Reason::NotFor(Backing::Hugetlb, Part::Stack),
        Reason::OnTouch,
        Reason::NoSuchPage(Backing::Thp, PageSize::new(64 << 10).expect("a size")),
        Reason::ThpOff(ThpOff::Never),
        Reason::ThpOff(ThpOff::Process),
        Reason::NoThp,
        Reason::MemoryLimit { left: 8 << 20, need: 24 << 20 },
        group(128 << 20),
        group(16 << 20),
        Reason::NoAddressSpace(24 << 20),
        Reason::NotPrimed,
        Reason::SmallFolios,
        Reason::NotCongruent(page),
        Reason::NotStored(not_stored),
        Reason::SmallerPages(PageSize::new(64 << 10).expect("a size")),
        Reason::CopiedLater,
        Reason::Cold,
        Reason::Failed(Backing::Thp, Fault::NotHuge { got: 4 << 20, want: 24 << 20 }),
        Reason::Failed(Backing::Thp, Fault::Kept("the file was changed meanwhile".into())),
        Reason::NotLifted,
    ]
}

fn obstacles() -> Vec<Obstacle> {
    let page = PageSize::MB2;
    vec![
        Obstacle::TooSmall(page),
        Obstacle::NotCongruent(page),
        Obstacle::NoThp,
        Obstacle::ThpDisabled,
        Obstacle::BeingWritten(Vec::new()),
        Obstacle::InUse(Vec::new()),
        Obstacle::Kept([Holder { pid: 1234, name: "server".into() }], Keeps::Unknown),
        Obstacle::Stays,
        Obstacle::NoLargeFolios("overlay".into()),
        Obstacle::Fragmented,
        Obstacle::MemoryShort { left: 8 << 20, need: 24 << 20 },
        Obstacle::OverBudget { left: 4 << 20, need: 8 << 20 },
        Obstacle::Pressure(Pressure::Waits { share: 1240, is_of_group: false }),
        Obstacle::NotPrimed,
        Obstacle::NotRead,
        Obstacle::NotOwner,
        Obstacle::Changed,
        Obstacle::Failed { call: "read", error: "Input/output error".into() },
    ]
}

/// Returns a table of a word, its meaning, and what helps.
fn table(rows: impl Iterator<Item = (&'static str, String, Option<String>)>) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut out = "| word | what is printed | what helps |\n|---|---|---|\n".to_string();
    for (key, what, helps) in rows {
        let helps = helps.map_or("–".to_string(), |helps| cell(&helps));
        out += &format!("| `{key}` | {} | {helps} |\n", cell(&what));
    }
    out
}

/// Returns the words that the function `key` of a source file has.
fn keys_in(source: &str) -> BTreeSet<&str> {
    let (_, rest) = source.split_once("pub fn key(&self)").expect("the function");
    let (body, _) = rest.split_once("\n    }\n").expect("its end");
    body.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_page_lists_every_reason_with_its_cure() {
    let (reasons, obstacles) = (reasons(), obstacles());
    let sampled: BTreeSet<&str> = reasons.iter().map(Reason::key).collect();
    assert_eq!(sampled, keys_in(include_str!("../../src/skip.rs")), "reasons() has one of each");
    let sampled: BTreeSet<&str> = obstacles.iter().map(Obstacle::key).collect();
    assert_eq!(sampled, keys_in(include_str!("../../src/prime/obstacle.rs")), "obstacles() has one of each");

    let file = Path::new("/usr/bin/server");
    let about = About::program(file);
    let of_reasons = reasons.iter().map(|r| (r.key(), r.to_string(), r.hint_for(&about)));
    let of_obstacles = obstacles.iter().map(|o| (o.key(), o.to_string(), o.hint_for(file, true)));
    let made = HEAD.to_string() + &table(of_reasons) + BETWEEN + &table(of_obstacles);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(Path::new(FILE).parent().expect("a folder")).expect("make the folder");
        std::fs::write(FILE, &made).expect("write the page");
    }
    let there = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        there == made,
        "the page is not up to date: BLESS=1 cargo test -p hugelift-core --test all reasons"
    );
}
