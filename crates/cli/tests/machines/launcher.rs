// SPDX-License-Identifier: Apache-2.0
//! Suite: programs of every kind are lifted and behave as before.

use crate::grow::{grow, grow_to};
use crate::huge::{Pool, moderate, option, thp};
use crate::look::From;
use crate::place::{alone, hugelift, lacks, needs_root, with_fault_points};
use crate::start::{bare, compare, lifted, lifted_by, run};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

fn lifts(name: &str) {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow(name, page);
    let run = compare(&["--backing", "thp"], &big.path);
    run.look().assert_lifted(page, From::Thp);
    run.assert_silent();
}

#[test]
fn static_program() {
    lifts("vm_big.static");
}

#[test]
fn static_pie() {
    lifts("vm_big.static-pie");
}

#[test]
fn dynamic_program() {
    lifts("vm_big.dynamic");
}

#[test]
fn dynamic_pie() {
    lifts("vm_big.pie");
}

#[test]
fn threads_of_a_constructor_static() {
    lifts("vm_threads.static");
}

#[test]
fn threads_of_a_constructor_dynamic() {
    lifts("vm_threads.pie");
}

#[test]
fn death_by_signal_is_the_programs_own() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    for kind in ["vm_big.static", "vm_big.pie"] {
        let big = grow(kind, page);
        let lifted = run(&mut lifted(&["--backing", "thp"], &big.path, &["die"]));
        lifted.assert_same(&run(&mut bare(&big.path, &["die"])));
        assert_eq!(lifted.status.signal(), Some(libc::SIGSEGV), "{}", lifted.stderr);
        lifted.looks[0].assert_lifted(page, From::Thp);
    }
}

/// A signal that was pending and blocked before stays so, an ignored signal stays ignored, and the
/// lift causes no other signal.
#[test]
fn signals_are_as_they_were() {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let with_signals = |command: &mut Command| {
        let prepare = || {
            // SAFETY: signal(2), sigprocmask(2), raise(3): the set is a live local, and this is
            // the child between fork and exec, with nothing else running in it.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR1);
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                libc::raise(libc::SIGUSR1);
            }
            Ok(())
        };
        // SAFETY: as above: only async-signal-safe calls.
        let run = run(unsafe { command.pre_exec(prepare) });
        let of_signals = |line: &&str| {
            ["SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"].iter().any(|k| line.starts_with(k))
        };
        let lines: Vec<String> = run.stdout.lines().filter(of_signals).map(String::from).collect();
        assert_eq!(lines.len(), 5, "{}\n{}", run.stderr, run.stdout);
        lines
    };
    for kind in ["vm_big.static", "vm_big.pie"] {
        let big = grow(kind, page);
        let bare = with_signals(&mut bare(&big.path, &["signals"]));
        let lifted = with_signals(&mut lifted(&["--backing", "thp"], &big.path, &["signals"]));
        assert_eq!(lifted, bare);
        assert!(
            bare.iter().any(|l| l.starts_with("ShdPnd") || l.starts_with("SigPnd") && !l.ends_with("0000"))
        );
    }
}

#[test]
fn failures_to_start_have_the_status_of_env() {
    let status = |program: &str| run(&mut lifted::<&str>(&[], program.as_ref(), &[])).status.code();
    assert_eq!(status("/nonexistent/program"), Some(127));
    assert_eq!(status("/proc/version"), Some(126));
}

#[test]
fn first_process_of_a_pid_namespace() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    for kind in ["vm_big.static", "vm_big.pie"] {
        let big = grow(kind, page);
        let script = r#"mount -t proc proc /proc && exec "$0" run --backing thp -- "$1""#;
        let mut command = Command::new("unshare");
        command.args(["-f", "-p", "-m", "sh", "-c", script]).arg(hugelift()).arg(&big.path);
        let lifted = run(&mut command);
        lifted.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
        lifted.look().assert_lifted(page, From::Thp);
    }
}

/// Kills `who` just before each ptrace operation in turn.
fn killed_at_each_step(who: &str, kind: &str) {
    needs_root!();
    let _alone = alone();
    let Some(page) = moderate() else { lacks!("no hugetlb pages") };
    let page_option = option(page);
    let options = ["--backing", "hugetlb", "--page-size", &page_option];
    // One whole page, wherever it is loaded. It is small because a few hundred runs each sum up all
    // its bytes.
    let size = if kind.ends_with("static") { page } else { 2 * page };
    let big = grow_to(&std::env::temp_dir(), kind, [size.max(64 << 10), 64 << 10]);
    let pool = Pool::of(page);
    let pages = 2 * size / page + (8 << 20) / page;
    assert!(pool.set(pages), "no {pages} pages of {page}");

    let dying = |at: &str| {
        let mut command = lifted_by(&with_fault_points(), &options, &big.path, &[]);
        // At a random base the program may or may not have to be moved, and the steps would differ.
        let stay = || {
            // SAFETY: personality(2) with a number.
            match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(stay) };
        run(command.env("HUGELIFT_TEST_DIE", at))
    };
    let counted = dying("count");
    let count = counted.stderr.lines().find_map(|l| l.strip_prefix("hugelift-test: ptrace operations: "));
    let count = count.unwrap_or_else(|| panic!("no count: {counted:?}"));
    let count: u64 = count.parse().unwrap();
    assert!(count > 20, "{count} operations");
    let bare = run(&mut bare::<&str>(&big.path, &[]));
    for n in 0..count {
        let run = dying(&format!("{n}:{who}"));
        match who {
            "helper" => run.assert_same(&bare),
            _ => assert_eq!(run.status.signal(), Some(libc::SIGKILL), "step {n}: {}", run.stderr),
        }
        // A killed process is gone when its parent is notified, but its memory is freed a bit
        // later.
        let freed = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(u64::from(pool.free() != pages) * 10));
            pool.free() == pages
        });
        assert!(freed, "step {n}: {} of {pages} pages are free", pool.free());
    }
}

#[test]
fn helper_killed_at_each_step_static() {
    killed_at_each_step("helper", "vm_big.static");
}

#[test]
fn helper_killed_at_each_step_dynamic() {
    killed_at_each_step("helper", "vm_big.pie");
}

#[test]
fn target_killed_at_each_step_static() {
    killed_at_each_step("target", "vm_big.static");
}

#[test]
fn target_killed_at_each_step_dynamic() {
    killed_at_each_step("target", "vm_big.pie");
}
