// SPDX-License-Identifier: Apache-2.0
//! A memory limit under which a program runs bare does not end the lifted program; and with
//! `--backing auto` a program's code behaves as that of its file.

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
    // At a fixed address: the same huge pages at every start.
    fat("memory").flags(&["-no-pie"]).build()
}

/// A group with the memory controller, of whichever version it is bound to.
fn group() -> Result<CGroup, String> {
    let group = CGroup::new("memory")?;
    let (version, other) = if group.is_v2() { (2, 1) } else { (1, 2) };
    // The kernel binds a controller to one hierarchy. (By println!, as for all that no set-up brings.)
    println!("SKIP: the memory controller is bound to version {version} of control groups, not to {other}");
    Ok(group)
}

/// A store of the test's own on a tmpfs.
fn shelf() -> Result<TempDir, String> {
    TempDir::new_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))
}

fn is_same(bare: &Outcome, lifted: &Outcome) -> bool {
    (bare.end, &bare.stdout) == (lifted.end, &lifted.stdout)
}

/// Issue 13 A4: from the limit at which the program just runs to the one under which a copy of all
/// its code would fit, by every backing and with all parts, it ends as it does bare.
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
    // One needs hardly anything itself, one allocates more than its copy would take.
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
        // What hugelift itself takes while it starts a program is not what is looked for here: the pages
        // of its own file are charged elsewhere.
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
                // Near its peak the program is killed now and then without hugelift as well.
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
        assert!(tried >= 50, "bare it ran at hardly any limit: {tried}");
        assert!(!store.exists(), "an entry was made, whose memory the group has for ever");
    }
}

/// The message names the limit and the option that helps; following it lifts the program.
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
    let options = [&["--backing", "thp", "--strict"], &spare[..]].concat();
    let followed = cmd.lifted(&options);
    assert!(followed.end == End::Code(0) && followed.stderr.is_empty(), "{options:?}: {followed:?}");
    // What costs nothing is not held back.
    if let Ok(primed) = Primed::new(&victim()) {
        let cached = Cmd::new([primed.path()]).under(group.words()).lifted(&["--strict"]);
        assert!(cached.end == End::Code(0) && cached.stderr.is_empty(), "{cached:?}");
    }
    // A limit says why children are started as they are, and allocators told nothing.
    for (option, value) in [("--children", "lift"), ("--malloc", "thp")] {
        let told = cmd.lifted(&["--backing", "hugetlb", option, value]);
        let said = told.own_lines().iter().any(|l| l.contains("memory limit") && l.contains("--spare"));
        assert!(told.end == End::Code(0) && said, "{option}: {told:?}");
    }
}

/// An entry that was made elsewhere costs a limited group nothing.
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

/// Issue 13 A8: a program that protects, replaces, unmaps or gives back pages of its own code does
/// the same as bare, with and without a store, whatever the pool has.
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
            // Without a file to map there is only the anonymous copy: the README names this limit.
            continue;
        }
        let lifted = cmd.lifted(&["--backing", "auto"]);
        assert!(is_same(&bare, &lifted) && lifted.stderr.is_empty(), "{word}, no store: {lifted:?}");
    }
}

/// Issue 13 A8: the order of `auto` is the page cache, the store, transparent huge pages; pages of
/// the pool are for who asks for them.
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
        // A mapping that is huge in parts does not say which ones they are.
        let lacking = all.iter().find(|p| p.inner.map_or(0, |inner| inner.len()) != p.huge);
        assert!(cached > 0 || lacking.is_none(), "{lacking:?}");
        assert_eq!(pool.free(), PLENTY, "pages of the pool were taken");
        assert_eq!(held.finish().stderr, "");
        (thp > 0, shared > 0, cached > 0)
    };
    assert_eq!(huge(small.path(), None), (true, false, false), "nowhere to have a store");
    assert!(!store.exists());
    assert_eq!(huge(small.path(), Some(&store)), (false, true, false), "the first start makes it");
    assert_eq!(huge(small.path(), Some(&store)), (false, true, false), "the second uses it");
    match Primed::new(&hold) {
        Ok(primed) => {
            assert_eq!(huge(primed.path(), Some(&store)), (false, false, true), "the page cache has it");
        }
        Err(why) => crate::common::skipped(&why),
    }
    // Nothing to store: no store is made.
    let other = shelf.path().join("other/store");
    let tiny =
        Cmd::new([plain("tiny").flags(&["-nostdlib", "-static"]).build()]).env("HUGELIFT_STORE", &other);
    tiny.lifted(&["--backing", "auto"]);
    assert!(!shelf.path().join("other").exists(), "a store was made for a program that needs none");
}
