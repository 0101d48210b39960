// SPDX-License-Identifier: Apache-2.0
use super::*;
use hugelift_core::addr::Addr;
use std::fs;
use tempfile::TempDir;

/// Makes a folder as sysfs has it, with the files that the kernel would make: `count` configurations, and these operations.
fn sysfs(count: &str, operations: &str, regions: usize) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(FOLDER).join(name);
        fs::create_dir_all(path.parent().expect("its folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    file("nr_kdamonds", count);
    file("0/state", "off\n");
    file("0/contexts/nr_contexts", "0\n");
    let context = |name: &str, text: &str| file(&format!("0/contexts/0/{name}"), text);
    context("avail_operations", operations);
    for name in ["sample_us", "aggr_us", "update_us"] {
        context(&format!("monitoring_attrs/intervals/{name}"), "");
    }
    for name in [
        "operations",
        "targets/nr_targets",
        "targets/0/pid_target",
        "targets/0/regions/nr_regions",
        "schemes/nr_schemes",
        "schemes/0/action",
    ] {
        context(name, "");
    }
    for end in ["min", "max"] {
        context(&format!("monitoring_attrs/nr_regions/{end}"), "");
        for name in ["sz", "nr_accesses", "age"] {
            context(&format!("schemes/0/access_pattern/{name}/{end}"), "");
        }
    }
    for i in 0..regions {
        context(&format!("targets/0/regions/{i}/start"), "");
        context(&format!("targets/0/regions/{i}/end"), "");
    }
    context("schemes/0/tried_regions/total_bytes", "0\n");
    dir
}

fn text(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(FOLDER).join(name)).expect("a file")
}

fn setup(regions: u64) -> Setup {
    let range = |i: u64| Range { start: Addr(i << 21), end: Addr((i + 1) << 21) };
    Setup {
        pid: 42,
        ranges: (1..=regions).map(range).collect(),
        interval: Duration::from_millis(100),
        checks: 5,
    }
}

#[test]
fn issue_31_2_it_is_set_up_and_given_back() {
    let dir = sysfs("0\n", "vaddr\nfvaddr\npaddr\n", 4);
    let kdamond = Kdamond::claim(dir.path()).expect("it is free").start(&setup(4)).expect("it starts");
    for (name, want) in [
        ("nr_kdamonds", "1"),
        ("0/state", "on"),
        ("0/contexts/0/operations", "fvaddr"),
        ("0/contexts/0/targets/0/pid_target", "42"),
        ("0/contexts/0/monitoring_attrs/intervals/aggr_us", "500000"),
        ("0/contexts/0/monitoring_attrs/nr_regions/min", "4"),
        ("0/contexts/0/targets/0/regions/3/end", "10485760"),
        ("0/contexts/0/schemes/0/access_pattern/nr_accesses/min", "1"),
    ] {
        // What was there longer stays behind it in a plain file.
        assert!(text(&dir, name).starts_with(want), "{name}: {}", text(&dir, name));
    }
    drop(kdamond);
    assert!(text(&dir, "0/state").starts_with("off"));
    assert!(text(&dir, "nr_kdamonds").starts_with('0'));
}

#[test]
fn issue_31_2_what_fails_half_way_is_given_back() {
    let dir = sysfs("0\n", "fvaddr\n", 2);
    // The third region has no files.
    let error = Kdamond::claim(dir.path()).expect("it is free").start(&setup(3)).expect_err("no file");
    assert!(error.to_string().contains("regions/2/start: ENOENT"), "{error}");
    assert!(text(&dir, "nr_kdamonds").starts_with('0'));
}

#[test]
fn issue_31_2_an_old_kernel_lists_no_regions() {
    let dir = sysfs("0\n", "fvaddr\n", 3);
    fs::remove_dir_all(dir.path().join(FOLDER).join("0/contexts/0/schemes/0/tried_regions"))
        .expect("it is there");
    let error = Kdamond::claim(dir.path()).expect("it is free").start(&setup(3)).expect_err("no regions");
    assert!(matches!(error, Refused::NoRegions), "{error}");
    assert!(text(&dir, "0/state").starts_with("off") && text(&dir, "nr_kdamonds").starts_with('0'));
}

#[test]
fn issue_31_2_others_are_left_alone() {
    let dir = sysfs("2\n", "vaddr\nfvaddr\n", 0);
    let error = Kdamond::claim(dir.path()).expect_err("it is busy");
    assert!(error.to_string().starts_with("DAMON is in use: nr_kdamonds in "), "{error}");
    assert_eq!((text(&dir, "nr_kdamonds"), text(&dir, "0/state")), ("2\n".into(), "off\n".into()));
    let dir = sysfs("1\n", "paddr\n", 0);
    let error = Kdamond::claim(dir.path()).expect_err("no addresses");
    assert_eq!(error.to_string(), "the kernel's DAMON knows only: paddr, not fvaddr (CONFIG_DAMON_VADDR)");
    assert_eq!(text(&dir, "nr_kdamonds"), "1\n");
}

#[test]
fn issue_31_2_a_file_that_is_no_sysfs() {
    let none = tempfile::tempdir().expect("a folder");
    assert!(matches!(Kdamond::claim(none.path()), Err(Refused::Lacking)));
    for bad in ["", "\n", "-1\n", "x\x1b[31m", "99999999999999999999999999\n"] {
        let dir = sysfs(bad, "fvaddr\n", 0);
        let error = Kdamond::claim(dir.path()).expect_err("no number");
        assert!(matches!(error, Refused::Text { .. }), "{bad:?} {error}");
        assert!(!error.to_string().contains(['\n', '\x1b']), "{error}");
        assert_eq!(text(&dir, "nr_kdamonds"), bad);
    }
}

#[test]
fn issue_31_2_regions_are_read_and_bad_ones_left_out() {
    let dir = sysfs("0\n", "fvaddr\n", 3);
    let kdamond = Kdamond::claim(dir.path()).expect("it is free").start(&setup(3)).expect("it starts");
    for (i, end, accesses) in [(7, "4194304\n", "5\n"), (8, "4194304\n", ""), (9, "1\n", "2\n")] {
        let folder = dir.path().join(FOLDER).join(format!("0/contexts/0/schemes/0/tried_regions/{i}"));
        fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in [("start", "2097152\n"), ("end", end), ("nr_accesses", accesses)] {
            fs::write(folder.join(name), text).expect("a file");
        }
    }
    // A plain file does not say that it is on, as the kernel does.
    assert!(kdamond.regions().is_err());
    let state = dir.path().join(FOLDER).join("0/state");
    fs::remove_file(&state).expect("it is there");
    std::os::unix::fs::symlink("/dev/full", &state).expect("a link");
    assert!(matches!(kdamond.regions(), Err(Refused::Os { errno: Errno::ENOSPC, .. })));
    assert_eq!(
        read_regions_of(&kdamond),
        [Region { range: Range { start: Addr(1 << 21), end: Addr(2 << 21) }, accesses: 5 }]
    );
}

fn read_regions_of(kdamond: &Kdamond) -> Vec<Region> {
    kdamond.tried().expect("a folder")
}
