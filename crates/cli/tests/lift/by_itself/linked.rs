// SPDX-License-Identifier: Apache-2.0
//! Programs that call the library, linked in each way.

use super::built::{Linking, fat_with, large_object, library};
use crate::common::level;
use crate::common::{Cmd, End, find};
use crate::{need, skip};
use std::path::Path;
use std::time::Duration;

/// Runs a program and checks that it is content.
fn succeeds(cmd: Cmd) {
    let done = cmd.bare();
    assert_eq!((done.end, done.stderr.as_str()), (End::Code(0), ""), "{}", done.stdout);
    assert!(done.stdout.ends_with("ok\n"), "{}", done.stdout);
}

fn each_linking(words: &[&str]) {
    for linking in Linking::ALL {
        eprintln!("{linking:?} {words:?}");
        let program = fat_with("by_itself", linking).build();
        succeeds(Cmd::new([program.as_os_str()]).args(words));
    }
}

#[test]
fn lifts_and_restores_itself_without_writable_code() {
    each_linking(&["restore"]);
}

#[test]
fn lifts_data_only_while_it_has_one_thread() {
    each_linking(&["data"]);
}

#[test]
fn lifts_a_range() {
    each_linking(&["range"]);
}

#[test]
fn refuses_what_it_does_not_know() {
    each_linking(&["arguments"]);
}

#[test]
fn children_lift_themselves() {
    each_linking(&["child"]);
}

#[test]
fn children_of_a_program_that_lifts_itself_at_that_moment() {
    succeeds(Cmd::new([fat_with("by_itself_forks", Linking::Shared).build()]));
}

#[test]
fn children_that_open_libraries_do_not_hang() {
    // The library is none that the program has already: dlopen(3) then takes more locks.
    let object = large_object(9);
    let program = fat_with("by_itself_dlopen", Linking::Shared).build();
    let words = Cmd::new([program.as_os_str(), "300".as_ref(), object.as_os_str()]);
    succeeds(words.patience(Duration::from_secs(120)));
}

#[test]
fn what_was_done_is_reported_where_proc_cannot_be_read_any_more() {
    succeeds(Cmd::new([fat_with("by_itself_unseen", Linking::Shared).build()]));
}

#[test]
fn a_child_in_a_pid_namespace_of_its_own_lifts_itself() {
    for linking in [Linking::Shared, Linking::Static] {
        let program = fat_with("by_itself_namespace", linking).build();
        let done = Cmd::new([&program]).bare();
        if done.end == End::Code(77) {
            skip!("no PID namespace can be made: {}", done.stderr);
        }
        assert_eq!((done.end, done.stderr.as_str()), (End::Code(0), ""), "{}", done.stdout);
        assert_eq!(done.stdout, "ok\n");
    }
}

#[test]
fn no_function_changes_errno() {
    succeeds(Cmd::new([fat_with("by_itself_errno", Linking::Shared).build()]));
}

#[test]
fn lifts_what_was_opened_later() {
    let object = large_object(0);
    for linking in [Linking::Shared, Linking::Archive, Linking::NoPie] {
        let program = fat_with("by_itself", linking).build();
        succeeds(Cmd::new([program.as_os_str(), "opened".as_ref(), object.as_os_str()]));
    }
}

#[test]
fn busy_threads_a_profiler_and_dlclose() {
    // With the library of the tests, which is not optimised, each lift takes some tens of milliseconds.
    let rounds = level::rounds(50_u32, 1000);
    let program = fat_with("by_itself_busy", Linking::Shared).build();
    let objects = [1, 2, 3].map(large_object);
    let counts = [rounds, 10 * rounds].map(|n| n.to_string());
    let words = Cmd::new([&program]).args(counts).args(objects);
    let done = words.patience(Duration::from_secs(300)).bare();
    eprintln!("{}", done.stdout);
    assert_eq!((done.end, done.stderr.as_str()), (End::Code(0), ""), "{}", done.stdout);
}

/// Returns what a program writes.
fn output_of(words: &[&str], path: &Path) -> String {
    let done = Cmd::new(words).arg(path).bare();
    assert_eq!(done.end, End::Code(0), "{}", done.stderr);
    done.stdout
}

#[test]
fn the_shared_object_exports_what_its_version_script_says() {
    need!("objdump");
    let library = library().join("libhugelift.so.0");
    let table = output_of(&["objdump", "-T"], &library);
    let script = include_str!("../../../../library/hugelift.map");
    let (mut version, mut wanted) = ("", Vec::new());
    for line in script.lines() {
        match line.strip_suffix(" {") {
            Some(name) => version = name,
            None => wanted
                .extend(line.strip_prefix("    ").and_then(|l| l.strip_suffix(';')).map(|s| (s, version))),
        }
    }
    let mut exported: Vec<(&str, &str)> = Vec::new();
    for line in table.lines().filter(|line| line.contains(" .text") && !line.contains("*UND*")) {
        let mut words = line.split_whitespace().rev();
        let (name, version) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        exported.push((name, version));
    }
    wanted.retain(|(name, _)| *name != "*");
    exported.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(exported, wanted);
    let header = output_of(&["objdump", "-p"], &library);
    assert!(header.contains("SONAME               libhugelift.so.0"), "{header}");
    assert!(!header.contains("TEXTREL"), "{header}");
    if find("readelf").is_none() {
        skip!("needs readelf");
    }
    let flags = output_of(&["readelf", "-dW"], &library);
    assert!(flags.contains("NODELETE") && flags.contains("NOW"), "{flags}");
}
