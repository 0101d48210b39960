// SPDX-License-Identifier: Apache-2.0
//! Debuggers work in lifted code.

use crate::common::guard::{Exclusive, Settings};
use crate::common::{Cmd, End, HUGELIFT, Held, each_way, fat};
use crate::{need, need_root};

/// gdb attaches to a running lifted program and its breakpoint in lifted code is hit. After gdb has
/// detached, the program goes on with the bytes that it had.
#[test]
fn a_breakpoint_in_lifted_code() {
    need!("gdb");
    each_way(&fat("hold").build(), |way| {
        let held = Held::start_busy(&way.cmd(&["spin"]), Some(&way.options()), &way.program);
        let gdb = Cmd::new(["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off", "-p"])
            .arg(held.pid().to_string())
            .args(["-ex", "break *((char *)&fat_code + 3145728)", "-ex", "continue", "-ex", "x/i $pc"])
            .args(["-ex", "delete", "-ex", "detach"])
            .bare();
        assert!(gdb.stdout.contains("Breakpoint 1, "), "{gdb:?}");
        assert!(gdb.stdout.contains("=> 0x"), "{gdb:?}");
        assert!(held.is_untraced());
        let outcome = held.finish();
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
        assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n");
    });
}

/// A core dump that gdb writes in lifted code names the current function and its callers.
#[test]
fn a_core_dump_in_lifted_code() {
    need!("gdb");
    each_way(&fat("hold").build(), |way| {
        let dir = tempfile::TempDir::new().expect("a directory");
        let core = dir.path().join("core").display().to_string();
        let held = Held::start_busy(&way.cmd(&["spin"]), Some(&way.options()), &way.program);
        let gdb = || Cmd::new(["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off"]);
        let dump = gdb()
            .args(["-p", &held.pid().to_string()])
            .args(["-ex", "break *((char *)&fat_code + 3145728)", "-ex", "continue"])
            .args(["-ex", &format!("generate-core-file {core}"), "-ex", "delete", "-ex", "detach"])
            .bare();
        assert!(dump.stdout.contains("Saved corefile"), "{dump:?}");
        assert_eq!(held.finish().end, End::Code(0));
        let post = gdb().arg(&way.program).arg(&core).args(["-ex", "x/i $pc", "-ex", "bt"]).bare();
        assert!(post.stdout.contains("<fat_code+3145728>"), "{}: {post:?}", way.backing);
        assert!(post.stdout.contains(" main (") && post.stdout.contains("hold.c:"), "{post:?}");
    });
}

/// The same for a core dump that the kernel writes. The kernel leaves out what files hold.
#[test]
fn a_core_dump_of_the_kernels() {
    need!("gdb");
    need_root!();
    const PATTERN: &str = "/proc/sys/kernel/core_pattern";
    each_way(&fat("hold").build(), |way| {
        let dir = tempfile::TempDir::new().expect("a directory");
        let core = dir.path().join("core").display().to_string();
        let cmd = way.cmd(&["burn"]).under(["sh", "-c", "ulimit -c unlimited; exec \"$@\"", "sh"]);
        // With hugetlb the pool's lock is already held; it also covers this setting.
        let _alone = (way.backing != "hugetlb").then(|| Exclusive::take().expect("the lock"));
        let _kept = Settings::keep(&[PATTERN]).expect("a setting");
        std::fs::write(PATTERN, &core).expect("core_pattern");
        let held = Held::start_busy(&cmd, Some(&way.options()), &way.program);
        // SAFETY: kill(2) of our own child, which was not waited for.
        unsafe { libc::kill(held.pid().cast_signed(), libc::SIGABRT) };
        assert_eq!(held.finish().end, End::Signal(libc::SIGABRT));
        let post = Cmd::new(["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off"])
            .arg(&way.program)
            .arg(&core)
            .args(["-ex", "bt", "-ex", "x/i (char *)&fat_code + 3145728"])
            .bare();
        assert!(post.stdout.contains(" main ("), "{}: {post:?}", way.backing);
        let code = post.stdout.lines().find(|l| l.contains("<fat_code+3145728>"));
        assert!(code.is_some_and(|l| l.contains("mov")), "{}: {post:?}", way.backing);
    });
}

/// A program under a debugger cannot have a second tracer: it runs unlifted, and hugelift says so.
#[test]
fn started_under_a_debugger() {
    need!("gdb");
    let hold = fat("hold").build();
    let outcome =
        Cmd::new(["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "run", "--args"])
            .args([HUGELIFT, "run", "--backing", "thp", "--"])
            .arg(&hold)
            .bare();
    assert!(outcome.stdout.contains("wrong 0\nready\nwrong 0\n"), "{outcome:?}");
    assert!(outcome.stdout.contains("exited normally"), "{outcome:?}");
    assert!(matches!(outcome.own_lines()[..], [line] if line.contains("trac")), "{outcome:?}");
}
