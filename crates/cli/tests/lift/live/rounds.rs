// SPDX-License-Identifier: Apache-2.0
//! Many rounds of attach and restore, at random moments.

use super::{MODES, Running, command, descriptors, done, files, pause, segments, unnamed, victim};
use crate::common::huge::{assert_lifted, assert_no_wx, assert_unchanged};
use crate::common::level;
use crate::common::{Cmd, End, HUGELIFT, Pool, fat, guard};
use crate::{need_root, skip};
use hugelift_core::maps::Mapping;
use hugelift_linux::proc::procfs::Process;
use std::time::Duration;

/// The longest pause between two commands.
const PAUSE: Duration = Duration::from_millis(60);

#[test]
fn attach_and_restore() {
    let rounds = level::rounds(10, 100);
    let program = victim();
    for mode in MODES {
        // What a run that nobody touches leaves mapped, when its threads have ended.
        let bare = Running::start(&program, mode);
        pause(PAUSE);
        bare.report();
        let left = unnamed(bare.pid());
        assert_eq!(bare.finish(), Some(End::Code(0)));

        let running = Running::start(&program, mode);
        let pid = running.pid();
        let (files_before, descriptors_before) = (files(pid), descriptors(pid));
        for round in 0..rounds {
            let what = format!("{mode:?}, round {round}");
            pause(PAUSE);
            done("attach", pid);
            let pieces = segments(pid, &program);
            assert!(assert_lifted(&pieces, "thp", &what) >= 2, "{what}: {pieces:?}");
            assert_unchanged(pid, &pieces);
            assert_no_wx(pid, &pieces);
            pause(PAUSE);
            done("restore", pid);
            assert_eq!(files(pid), files_before, "{what}");
            let huge: u64 = segments(pid, &program).iter().map(|p| p.thp + p.hugetlb).sum();
            assert_eq!(huge, 0, "{what}: copies are left");
        }
        assert_eq!(descriptors(pid), descriptors_before, "{mode:?}");
        let report = running.report();
        println!("{mode:?}: {rounds} rounds, late: {}", report["late"]);
        // Less than one huge page.
        let leaked = unnamed(pid).saturating_sub(left);
        assert!(leaked < 1 << 20, "{mode:?}: {leaked} bytes more are mapped than in a bare run");
        assert_eq!(running.finish(), Some(End::Code(0)));
    }
}

/// Copies on pages of the pool are anonymous memory that looks like a deleted file.
#[test]
fn restored_from_the_pool() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    let (pid, before) = (running.pid(), files(running.pid()));
    for _ in 0..3 {
        let outcome =
            Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "hugetlb"]).arg(pid.to_string()).bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        let pieces = segments(pid, &program);
        assert!(assert_lifted(&pieces, "hugetlb", "attach") >= 2, "{pieces:?}");
        assert_unchanged(pid, &pieces);
        done("restore", pid);
        assert_eq!(files(pid), before);
    }
    running.report();
}

/// Attach twice and restore twice is the same as once.
#[test]
fn twice_is_once() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    let before = files(running.pid());
    done("attach", running.pid());
    let first = files(running.pid());
    done("attach", running.pid());
    assert_eq!(files(running.pid()), first);
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "twice") >= 2);
    for _ in 0..2 {
        done("restore", running.pid());
        assert_eq!(files(running.pid()), before);
    }
    running.report();
}

/// Several commands at once for one process exclude each other, or are refused. The process does not
/// notice.
#[test]
fn several_at_once() {
    let program = victim();
    let running = Running::start(&program, &["quiet"]);
    let pid = running.pid();
    let before = files(pid);
    for _ in 0..8 {
        let commands = ["attach", "restore", "attach"].map(|verb| command(verb, &[pid]));
        std::thread::scope(|scope| {
            for cmd in &commands {
                scope.spawn(|| {
                    let outcome = cmd.bare();
                    // The other one is named if it holds a thread just now.
                    let is_refused =
                        ["another hugelift changes", "another hugelift (process ", "is traced by"]
                            .iter()
                            .any(|why| outcome.stderr.contains(why));
                    assert!(outcome.end == End::Code(if is_refused { 125 } else { 0 }), "{outcome:?}");
                });
            }
        });
    }
    done("restore", pid);
    assert_eq!(files(pid), before);
    running.report();
}

/// A copy may hold the ELF header itself, and what is left of the file may share its first page with another segment.
/// Restore finds the object all the same.
fn restore_with_the_elf_header(backing: &str) {
    let layout = ["-Wl,-z,now", "-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=0x200000"];
    let built = fat("live").flags(&layout).build();
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = dir.path().join("program");
    crate::common::cache::copy(&built, &program);
    let running = Running::start(&program, &["quiet"]);
    let (pid, before) = (running.pid(), files(running.pid()));
    let header =
        |files: &[String]| files.iter().any(|line| line.contains(" 0 ") && line.ends_with("/program"));
    assert!(header(&before));
    let attach = || {
        let outcome =
            Cmd::new([HUGELIFT, "attach", "--whole", "--backing", backing]).arg(pid.to_string()).bare();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        assert!(!header(&files(pid)), "the header is no part of the copy: {outcome:?}");
    };
    let on_pool = || -> Vec<Mapping> {
        let all = Process::new(pid).maps().expect("its maps");
        all.into_iter().filter(|m| m.is_file() && m.is_copy_on_pool()).collect()
    };
    for _ in 0..2 {
        attach();
        let pieces = segments(pid, &program);
        assert!(assert_lifted(&pieces, backing, "attach") >= 1, "{pieces:?}");
        let copies = on_pool();
        attach();
        assert_eq!(on_pool(), copies, "the second attach has copied again");
        let shown = Cmd::new([HUGELIFT, "inspect", "-v"]).arg(pid.to_string()).bare();
        assert!(!shown.stdout.contains("anon_hugepage"), "a copy is taken for an object: {}", shown.stdout);
        assert!(!shown.stdout.contains("breakpoint"), "a copy is taken for patched code: {}", shown.stdout);
        done("restore", pid);
        assert_eq!(files(pid), before);
    }
    // As an upgrade does.
    std::fs::remove_file(&program).expect("remove the program");
    attach();
    done("restore", pid);
    assert_eq!(files(pid), before);
    running.report();
}

#[test]
fn restored_with_the_elf_header() {
    restore_with_the_elf_header("thp");
}

/// The kernel shows these copies as a file, which begins with the ELF header.
#[test]
fn restored_from_the_pool_with_the_elf_header() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    restore_with_the_elf_header("hugetlb");
}
