// SPDX-License-Identifier: Apache-2.0
//! Writable parts: data, bss, heap. Lifted, they keep their bytes, can be written, forked and given
//! back, and get no new permissions.

use crate::common::huge::smaps;
use crate::common::{Cmd, End, HUGELIFT, Held, Pool, each_backing, find, guard, plain};
use crate::{need, need_root, skip};
use hugelift_core::maps::Prot;
use serde_json::Value;
use std::process::Command;

const KINDS: [&[&str]; 4] = [&["-pie", "-fPIE"], &["-no-pie"], &["-static"], &["-static-pie"]];

fn inspect(pid: u32) -> Value {
    let out = Command::new(HUGELIFT).args(["inspect", "--json", "--parts", "all", &pid.to_string()]).output();
    serde_json::from_slice(&out.expect("run inspect").stdout).expect("JSON of inspect")
}

/// Runs the writing victim, and returns what inspect shows after it has written everywhere.
fn written(before: &[&str], options: &[&str], flags: &[&str]) -> Value {
    let program = plain("writes").flags(flags).build();
    let cmd = Cmd::new([&program]).under(before);
    let held = Held::start(&cmd, Some(options), &program);
    let seen = inspect(held.pid());
    let wx: Vec<_> = smaps(held.pid()).into_iter().filter(|u| u.mapping.prot.is_wx()).collect();
    assert!(wx.is_empty(), "{wx:?}");
    let outcome = held.finish();
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("as it should be\n", End::Code(0)), "{flags:?}");
    assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{options:?} {flags:?}");
    seen
}

/// Asserts that all that can be huge is huge, and at least these bytes of each part.
fn assert_all(seen: &Value, parts: &[(&str, u64)], what: &str) {
    for (part, least) in parts {
        let total = &seen["totals"][part];
        assert_eq!(total["huge_bytes"], total["liftable_bytes"], "{what}: {part}: {seen}");
        assert!(total["huge_bytes"].as_u64() >= Some(*least), "{what}: {part}: {seen}");
    }
}

const MB: u64 = 1 << 20;
const PARTS: [(&str, u64); 3] = [("relro", 2 * MB), ("data", 4 * MB), ("bss", 28 * MB)];

#[test]
fn on_transparent_pages() {
    for flags in KINDS {
        for before in [&[][..], &["setarch", "-R"]] {
            let seen = written(before, &["--parts", "all", "--backing", "thp"], flags);
            // Memory that a child has written too was copied in pages of 4 kB, so it is no longer
            // huge.
            let huge = |part: &str| seen["totals"][part]["huge_bytes"].as_u64().unwrap();
            assert!(huge("relro") >= 2 * MB, "{flags:?} {before:?}: {seen}");
        }
    }
}

#[test]
fn what_is_lifted_is_huge_before_a_fork() {
    for flags in KINDS {
        let program = plain("writes").flags(flags).flags(&["-DNO_FORK"]).build();
        let options = ["--parts", "all", "--backing", "thp"];
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        assert_all(&inspect(held.pid()), &PARTS, &format!("{flags:?}"));
        assert_eq!(held.finish().end, End::Code(0));
    }
}

#[test]
fn data_on_pool_pages() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    // Static programs load no library that would guard their fork(2): see forks.rs.
    for flags in &KINDS[..2] {
        let options = ["--parts", "all", "--backing", "thp", "--data-backing", "hugetlb"];
        let seen = written(&[], &options, flags);
        assert_all(&seen, &[("data", 4 * MB), ("bss", 28 * MB)], &format!("{flags:?}"));
        let backing = |part: &str| {
            let objects = seen["objects"].as_array().unwrap().iter();
            let mut parts = objects.flat_map(|o| o["parts"].as_array().unwrap());
            parts.find(|p| p["part"] == part && p["huge_bytes"] != 0).map(|p| p["backing"].clone())
        };
        assert_eq!(backing("data"), Some("hugetlb".into()), "{flags:?}: {seen}");
        // Some pages of relro are protected later, so they are never from the pool.
        assert_ne!(backing("relro"), Some("hugetlb".into()), "{flags:?}: {seen}");
    }
}

/// glibc's heap is on huge pages, and the user's own GLIBC_TUNABLES override hugelift's.
#[test]
fn the_heap_by_the_allocators_variable() {
    need!("perl");
    let perl = find("perl").expect("perl").canonicalize().expect("perl");
    let script = "my %h; $h{$_} = $_ for 1 .. 300000; <STDIN>";
    let heap = |options: &[&str], tunables: Option<&str>| {
        let mut cmd = Cmd::new([perl.as_os_str(), "-e".as_ref(), script.as_ref()]);
        if let Some(tunables) = tunables {
            cmd = cmd.env("GLIBC_TUNABLES", tunables);
        }
        let held = Held::start(&cmd, Some(options), &perl);
        let heap = smaps(held.pid()).into_iter().filter(|u| u.mapping.is_named("[heap]"));
        heap.map(|u| u.anon_huge).sum::<u64>()
    };
    assert!(heap(&["--parts", "all"], None) > 10 * MB);
    assert!(heap(&["--malloc", "thp"], None) > 10 * MB);
    assert!(heap(&["--malloc", "thp"], Some("glibc.malloc.arena_max=1")) > 10 * MB);
    assert_eq!(heap(&["--malloc", "thp"], Some("glibc.malloc.hugetlb=0")), 0);
    assert_eq!(heap(&["--parts", "all", "--malloc", "off"], None), 0);
    assert_eq!(heap(&[], None), 0);
}

/// A program without a whole huge page whose heap is huge as it grows is not said to have nothing.
#[test]
fn a_heap_to_come_is_named() {
    need!("env");
    let lines = |options: &[&str]| Cmd::new(["env"]).lifted(options).own_lines().join("\n");
    let yet = "nothing on huge pages yet: its allocator asks for them as it takes memory; ";
    let said = lines(&["-v", "--parts", "all"]);
    assert!(said.contains("GLIBC_TUNABLES=") && said.contains(yet), "{said}");
    let said = lines(&["-v", "--malloc", "thp"]);
    assert!(said.contains(yet), "{said}");
    let said = lines(&["-v", "--parts", "all", "--malloc", "off"]);
    assert!(said.contains("nothing on huge pages: ") && !said.contains(yet), "{said}");
    let planned = |options: &[&str]| Cmd::new(["env"]).lifted(&[&["--dry-run"], options].concat()).stdout;
    let said = planned(&["--parts", "all"]);
    let set = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 is set: its allocator asks for huge pages";
    assert!(said.contains(set), "{said}");
    let said = planned(&["--parts", "all", "--malloc", "off"]);
    assert!(!said.contains("GLIBC_TUNABLES"), "{said}");
}

/// hugelift changes the user's environment only on request.
#[test]
fn variables_are_set_on_request_alone() {
    need!("env");
    let env = |options: &[&str]| {
        let outcome = Cmd::new(["env"]).lifted(options);
        outcome.stdout.lines().any(|l| l.starts_with("GLIBC_TUNABLES="))
    };
    assert!(!env(&["--quiet"]));
    assert!(!env(&["--quiet", "--parts", "text,data,bss"]));
    assert!(env(&["--quiet", "--malloc", "thp"]));
    each_backing(|options| assert!(!env(&[&["--quiet"], options].concat())));
}

/// The attributes that a program has set on its memory stay: hugelift does not touch such memory,
/// or leaves it where it is.
#[test]
fn attributes_stay() {
    let library = plain("attributes").library().build();
    let program = plain("attributes").with(library).build();
    let asked = |what: &str, options: Option<&[&str]>| {
        let held = Held::start(&Cmd::new([&program]).env("ASK", what), options, &program);
        let of_program =
            |m: &hugelift_core::maps::Mapping| m.path == program || m.path.as_os_str().is_empty();
        let all =
            smaps(held.pid()).into_iter().filter(|u| of_program(&u.mapping) && u.mapping.prot == Prot::RW);
        let all: Vec<_> = all.filter(|u| !u.attributes.is_empty()).collect();
        let seen = inspect(held.pid());
        assert_eq!(held.finish().end, End::Code(0), "{what}");
        (all.iter().map(|u| u.mapping.range.len()).sum::<u64>(), all, seen)
    };
    let options = ["--parts", "all", "--backing", "thp"];
    for (what, bss_is_huge) in
        [("mlock", true), ("dontdump", true), ("dontfork", true), ("nohugepage", false)]
    {
        let (bare, ..) = asked(what, None);
        assert!(bare > 15 * MB, "{what}: {bare}");
        let (lifted, all, seen) = asked(what, Some(&options));
        assert_eq!(lifted, bare, "{what}: {all:#?}");
        let huge = |part: &str| seen["totals"][part]["huge_bytes"].as_u64().unwrap();
        assert_eq!(huge("data"), 0, "{what}: {seen}");
        assert_eq!(huge("bss") >= 6 * MB, bss_is_huge, "{what}: {seen}");
        let told = seen["objects"][0]["parts"].to_string();
        assert!(told.contains("special-memory"), "{what}: {told}");
    }
}

/// Data is lifted even if the code is already huge.
#[test]
fn data_beside_a_primed_program() {
    let program = plain("writes").flags(&["-no-pie", "-DNO_FORK"]).build();
    let options = ["--parts", "all", "--backing", "pagecache", "--quiet"];
    let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
    assert_all(&inspect(held.pid()), &PARTS, "pagecache");
    assert_eq!(held.finish().end, End::Code(0));
}
