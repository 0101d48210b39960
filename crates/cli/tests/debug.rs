// SPDX-License-Identifier: Apache-2.0
//! A debugger finds its way about in lifted code.

mod common;

use common::{Cmd, End, HUGELIFT, Held, each_backing, fat};

/// gdb attaches to a running lifted program, its breakpoint in lifted code is hit, and
/// after it has gone the program goes on, with the bytes that it had.
#[test]
fn a_breakpoint_in_lifted_code() {
    need!("gdb");
    let hold = fat("hold").build();
    each_backing(|options| {
        let held = Held::start_busy(&Cmd::new([&hold]).arg("spin"), Some(options), &hold);
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

/// A core dump taken in lifted code names the function that it stands in, and its callers.
#[test]
fn a_core_dump_in_lifted_code() {
    need!("gdb");
    let hold = fat("hold").build();
    each_backing(|options| {
        let dir = tempfile::TempDir::new().expect("a directory");
        let core = dir.path().join("core").display().to_string();
        let held = Held::start_busy(&Cmd::new([&hold]).arg("spin"), Some(options), &hold);
        let gdb = || Cmd::new(["gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off"]);
        let dump = gdb()
            .args(["-p", &held.pid().to_string()])
            .args(["-ex", "break *((char *)&fat_code + 3145728)", "-ex", "continue"])
            .args(["-ex", &format!("generate-core-file {core}"), "-ex", "delete", "-ex", "detach"])
            .bare();
        assert!(dump.stdout.contains("Saved corefile"), "{dump:?}");
        assert_eq!(held.finish().end, End::Code(0));
        let post = gdb().arg(&hold).arg(&core).args(["-ex", "x/i $pc", "-ex", "bt"]).bare();
        assert!(post.stdout.contains("<fat_code+3145728>"), "{post:?}");
        assert!(post.stdout.contains(" main (") && post.stdout.contains("hold.c:"), "{post:?}");
    });
}

/// Started under a debugger there is no second tracer: it runs plainly, and says so.
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
