// SPDX-License-Identifier: Apache-2.0
//! Tests that a lifted program runs under each memory limit under which it runs bare, and that with
//! `--backing auto` its code behaves as if mapped from its file.

use crate::common::guard::{Exclusive, PLENTY};
use crate::common::huge::{pieces, smaps};
use crate::common::{CGroup, Cmd, End, HUGELIFT, Held, Outcome, Pool, Primed, fat, plain};
use crate::{need_root, skip};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MB: u64 = 1 << 20;
/// The limit on a group's memory, in both versions of control groups.
const LIMIT: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

fn victim() -> PathBuf {
    // A fixed address gives the same huge pages at every start.
    fat("memory").flags(&["-no-pie"]).build()
}

/// Makes a control group with the memory controller, of the version to which the controller is bound.
fn group() -> Result<CGroup, String> {
    let group = CGroup::new("memory")?;
    let (version, other) = if group.is_v2() { (2, 1) } else { (1, 2) };
    // The kernel binds a controller to one hierarchy. No set-up provides both versions, so this is a
    // println!: skip! would end the test, and fail it under REQUIRE_ALL=1.
    println!("SKIP: the memory controller is bound to version {version} of control groups, not to {other}");
    Ok(group)
}

/// Makes a directory on a tmpfs for a store that only this test uses.
fn shelf() -> Result<TempDir, String> {
    TempDir::new_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))
}

fn is_same(bare: &Outcome, lifted: &Outcome) -> bool {
    (bare.end, &bare.stdout) == (lifted.end, &lifted.stdout)
}

/// The program ends as it does bare, by every backing and with all parts. The limits tried range from
/// the lowest at which the program runs to one under which a copy of all its code fits.
#[test]
fn a_program_that_runs_under_a_memory_limit_runs_lifted() {
    need_root!();
    let group = match group() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let _pool = match Pool::with_free(PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let small = Primed::small(&victim());
    // The first program needs hardly any memory, the second allocates more than its copy takes.
    for words in [&[][..], &["heap=24", "bss", "stack"]] {
        let shelf = match shelf() {
            Ok(shelf) => shelf,
            Err(why) => skip!("{why}"),
        };
        let store = shelf.path().join("hugelift/store");
        let cmd = Cmd::new([small.path()]).args(words).under(group.words()).env("HUGELIFT_STORE", &store);
        group.limit(&LIMIT, "-1").or_else(|_| group.limit(&LIMIT, "max")).expect("no limit");
        group.reset_peak();
        let bare = cmd.bare();
        assert_eq!(bare.end, End::Code(0), "{bare:?}");
        // The test is not about the memory that hugelift itself takes while it starts a program: reading
        // hugelift's file here charges its pages to another group.
        std::fs::read(HUGELIFT).expect("read hugelift");
        let least = group.peak().expect("the peak").max(8 * MB);
        let copy = 12 * MB;
        let always_runs = |times: u32| (0..times).all(|_| cmd.bare().end == End::Code(0));
        let mut tried = 0;
        for limit in (least..=least + copy + 4 * MB).step_by(2 * MB as usize) {
            group.limit(&LIMIT, &limit.to_string()).expect("set the limit");
            if !always_runs(2) {
                continue;
            }
            let mut same = |options: &[&str]| {
                let lifted = cmd.lifted(options);
                tried += 1;
                // Near its peak the program is sometimes killed without hugelift as well.
                let excused = || !always_runs(10);
                let what = (words, limit, options);
                assert!(is_same(&bare, &lifted) || excused(), "{what:?}: {lifted:?}");
            };
            for backing in ["auto", "thp", "shared", "hugetlb", "pagecache"] {
                same(&["--backing", backing, "--parts", "text,rodata", "--quiet"]);
                same(&["--backing", backing, "--parts", "all", "--quiet"]);
            }
            same(&["--parts", "all", "--data-backing", "hugetlb", "--malloc", "thp", "--quiet"]);
        }
        assert!(tried >= 50, "the bare program ran at too few limits: {tried} comparisons");
        assert!(!store.exists(), "an entry was made, and its memory stays charged to the group for ever");
    }
}

/// The message names the limit and the option that helps, and with this option the program is lifted.
#[test]
fn a_memory_limit_that_prevents_a_lift_is_named_and_the_hint_helps() {
    need_root!();
    // Other tests switch transparent huge pages off.
    let _alone = Exclusive::take().expect("the lock");
    let group = match group() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let small = Primed::small(&victim());
    group.limit(&LIMIT, &(256 * MB).to_string()).expect("set the limit");
    let cmd = Cmd::new([small.path()]).under(group.words());
    let outcome = cmd.lifted(&["--backing", "thp"]);
    let lines = outcome.own_lines();
    assert_eq!((outcome.end, lines.len()), (End::Code(0), 1), "{outcome:?}");
    let (line, limit) = (lines[0], group.path().join("memory."));
    assert!(line.contains("memory limit") && line.contains(limit.to_str().unwrap()), "{line}");
    assert!(line.contains("256 MB"), "{line}");
    let spare = line.split("hugelift run ").nth(1).and_then(|rest| rest.split(',').next());
    let spare: Vec<&str> = spare.unwrap_or_else(|| panic!("no command in: {line}")).split(' ').collect();
    assert_eq!(spare[0], "--spare", "{line}");
    let options = [&["--backing", "thp", "--strict"], &spare[..]].concat();
    let followed = cmd.lifted(&options);
    assert!(followed.end == End::Code(0) && followed.stderr.is_empty(), "{options:?}: {followed:?}");
    // Mapping the page cache costs the group no memory and is done in spite of the limit.
    if let Ok(primed) = Primed::new(&victim()) {
        let cached = Cmd::new([primed.path()]).under(group.words()).lifted(&["--strict"]);
        assert!(cached.end == End::Code(0) && cached.stderr.is_empty(), "{cached:?}");
    }
    // A line names the limit as the reason why children are not lifted and allocators get no settings.
    for (option, value) in [("--children", "lift"), ("--malloc", "thp")] {
        let outcome = cmd.lifted(&["--backing", "hugetlb", option, value]);
        let said = outcome.own_lines().iter().any(|l| l.contains("memory limit") && l.contains("--spare"));
        assert!(outcome.end == End::Code(0) && said, "{option}: {outcome:?}");
    }
}

/// An entry that was made outside the limited group costs the group no memory.
#[test]
fn under_a_memory_limit_an_entry_of_the_store_is_used() {
    need_root!();
    // Other tests switch transparent huge pages off.
    let _alone = Exclusive::take().expect("the lock");
    let (group, shelf) = match (group(), shelf()) {
        (Ok(group), Ok(shelf)) => (group, shelf),
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    };
    let store = shelf.path().join("hugelift/store");
    let small = Primed::small(&victim());
    let cmd = Cmd::new([small.path()]).env("HUGELIFT_STORE", &store);
    let options = ["--backing", "shared", "--strict"];
    assert_eq!(cmd.lifted(&options).end, End::Code(0));
    group.limit(&LIMIT, &(8 * MB).to_string()).expect("set the limit");
    let limited = cmd.under(group.words()).lifted(&options);
    assert!(limited.end == End::Code(0) && limited.stderr.is_empty(), "{limited:?}");
}

/// A program that protects, replaces, unmaps or gives back pages of its own code behaves as it does bare,
/// with and without a store, even if the pool has free pages.
#[test]
fn code_with_auto_behaves_as_if_mapped_from_its_file() {
    let shelf = match shelf() {
        Ok(shelf) => shelf,
        Err(why) => skip!("{why}"),
    };
    let small = Primed::small(&victim());
    let _pool = Pool::with_free(PLENTY).ok();
    let with_store = |cmd: Cmd| cmd.env("HUGELIFT_STORE", shelf.path().join("hugelift/store"));
    for word in ["patch", "unmap", "dontneed"] {
        let cmd = Cmd::new([small.path()]).arg(word);
        let bare = cmd.bare();
        assert_eq!(bare.end, End::Code(0), "{bare:?}");
        for start in 1..=2 {
            let lifted = with_store(cmd.clone()).lifted(&["--backing", "auto"]);
            assert!(is_same(&bare, &lifted) && lifted.stderr.is_empty(), "{word}, start {start}: {lifted:?}");
        }
        if word == "dontneed" {
            // Without a store `auto` has only an anonymous copy, whose pages do not come back: docs/limits.md
            // names this limit.
            continue;
        }
        let lifted = cmd.lifted(&["--backing", "auto"]);
        assert!(is_same(&bare, &lifted) && lifted.stderr.is_empty(), "{word}, no store: {lifted:?}");
    }
}

/// The order of `auto` is the page cache, the store, transparent huge pages. It takes pages of the pool
/// only if an option asks for them.
#[test]
fn auto_tries_the_backings_in_order() {
    need_root!();
    let pool = match Pool::with_free(PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let shelf = match shelf() {
        Ok(shelf) => shelf,
        Err(why) => skip!("{why}"),
    };
    let store = shelf.path().join("hugelift/store");
    let hold = fat("hold").flags(&["-no-pie"]).build();
    let small = Primed::small(&hold);
    let huge = |program: &Path, store: Option<&Path>| {
        let mut cmd = Cmd::new([program]);
        if let Some(store) = store {
            cmd = cmd.env("HUGELIFT_STORE", store);
        }
        let held = Held::start(&cmd, Some(&["--backing", "auto"]), program);
        let all = pieces(held.pid(), &[program.to_owned()]);
        assert!(all.iter().any(|p| p.inner.is_some()));
        let (mut thp, mut shared, mut cached) = (0, 0, 0);
        for usage in smaps(held.pid()) {
            (thp, shared, cached) =
                (thp + usage.anon_huge, shared + usage.shmem_huge, cached + usage.file_huge);
        }
        // smaps does not show which parts of a mapping are huge, so the page cache is not compared.
        let lacking = all.iter().find(|p| p.inner.map_or(0, |inner| inner.len()) != p.huge);
        assert!(cached > 0 || lacking.is_none(), "{lacking:?}");
        assert_eq!(pool.free(), PLENTY, "auto took pages of the pool");
        assert_eq!(held.finish().stderr, "");
        (thp > 0, shared > 0, cached > 0)
    };
    assert_eq!(huge(small.path(), None), (true, false, false), "without a place for a store");
    assert!(!store.exists());
    assert_eq!(
        huge(small.path(), Some(&store)),
        (false, true, false),
        "the first start makes the store's entry"
    );
    assert_eq!(huge(small.path(), Some(&store)), (false, true, false), "the second start uses the entry");
    match Primed::new(&hold) {
        Ok(primed) => {
            assert_eq!(
                huge(primed.path(), Some(&store)),
                (false, false, true),
                "the page cache has the file on huge pages"
            );
        }
        Err(why) => crate::common::skipped(&why),
    }
    // A program with nothing to store: hugelift makes no store.
    let other = shelf.path().join("other/store");
    let tiny =
        Cmd::new([plain("tiny").flags(&["-nostdlib", "-static"]).build()]).env("HUGELIFT_STORE", &other);
    tiny.lifted(&["--backing", "auto"]);
    assert!(!shelf.path().join("other").exists(), "a store was made for a program that needs none");
}
