// SPDX-License-Identifier: Apache-2.0
//! What a program inherits and can know of itself is the same under `hugelift run` as without it. A
//! victim prints all of it, and the two lists are compared.

use crate::common::run::same_as;
use crate::common::{Cmd, End, Outcome, each_backing, fat, open_dir, plain, same, same_lines};
use crate::{need, need_root, skip};
use std::path::Path;

/// Asserts that the victim's list under `setup WORDS` is the same bare and lifted, and returns the
/// list.
fn same_state(words: &[&str]) -> Outcome {
    let (setup, state) = (plain("setup").build(), fat("state").build());
    let cmd = Cmd::new([&state]).arg("an argument").under([&setup]).under(words).under(["--"]);
    let bare = cmd.bare();
    assert_eq!(bare.end, End::Code(0), "{words:?}: {bare:?}");
    each_backing(|options| drop(same_as(&bare, &cmd, options, str::to_string)));
    bare
}

#[track_caller]
fn assert_line(outcome: &Outcome, line: &str) {
    assert!(outcome.stdout.lines().any(|l| l == line), "no line '{line}' in\n{}", outcome.stdout);
}

#[test]
fn as_it_is() {
    let outcome = same_state(&[]);
    assert_line(&outcome, "TracerPid:\t0");
    assert_line(&outcome, "children at first: ''");
    assert_line(&outcome, "children later: ''");
    assert_line(&outcome, "waitpid later: none");
    assert!(outcome.stdout.contains(", leader yes, "), "the tests start it as a group leader: {outcome:?}");
    assert_line(&outcome, "pending later:");
    assert_line(&outcome, "wrong 0");
}

#[test]
fn signal_mask_and_dispositions() {
    assert_line(&same_state(&["ignore=13"]), "signal 13: ignored, flags 0");
    same_state(&["default=13"]);
    // SIGCHLD ignored and blocked: reaping the helper must not depend on the signal.
    same_state(&["ignore=17", "ignore=1", "ignore=2", "ignore=3"]);
    same_state(&["block=17"]);
    same_state(&["block=1,2,3,10,12,13,14,15,17,18,20,23,28,33,40,64"]);
    // Every signal that can be blocked, SIGTRAP and SIGSEGV among them.
    let all: Vec<String> = (1..=64).map(|n: u32| n.to_string()).collect();
    let outcome = same_state(&[&format!("block={}", all.join(","))]);
    assert_line(&outcome, "SigBlk:\tfffffffe7ffbfeff");
    same_state(&["ignore=5", "ignore=11", "ignore=10", "ignore=64"]);
}

#[test]
fn pending_signals() {
    let outcome = same_state(&["pend=10,17,18,40"]);
    assert_line(&outcome, "pending later: 10 17 18 40");
    same_state(&["block=5", "pend=5,11"]);
}

#[test]
fn file_descriptors() {
    same_state(&["close=0"]);
    same_state(&["close=1", "fd=1"]);
    same_state(&["fd=7", "fd=63", "fd=200"]);
    for closed in [&["close=0"][..], &["close=0", "close=2"], &["close=2"]] {
        let outcome = same_state(closed);
        assert!(!outcome.stdout.contains("socket"), "{outcome:?}");
    }
}

/// With all three standard streams closed nothing can be printed, so only the exit status shows
/// which descriptors are open.
#[test]
fn all_standard_streams_closed() {
    let setup = plain("setup").build();
    let hold = fat("hold").build();
    let cmd = Cmd::new([&hold]).under([&setup]).under(["close=0", "close=1", "close=2", "--"]);
    each_backing(|options| drop(same(&cmd, options)));
    let ls = Cmd::new(["sh", "-c", "test ! -e /proc/self/fd/0 && test ! -e /proc/$$/fd/1 && exit 21"]);
    let cmd = ls.under([&setup]).under(["close=0", "close=1", "close=2", "--"]);
    assert_eq!(cmd.bare().end, End::Code(21));
    assert_eq!(cmd.lifted(&[]).end, End::Code(21));
}

#[test]
fn limits() {
    let outcome =
        same_state(&["rlimit=4:0:0", "rlimit=7:64:128", "rlimit=3:4194304:0x4000000", "rlimit=0:1000:2000"]);
    assert_line(&outcome, "rlimit 7: 40 80");
    same_state(&["rlimit=11:0:0"]); // RLIMIT_SIGPENDING
    same_state(&["rlimit=1:0:0"]); // RLIMIT_FSIZE: nothing may be written to a file
    same_state(&["rlimit=12:0:0", "rlimit=13:0:0", "rlimit=14:0:0", "rlimit=10:0:0"]);
}

#[test]
fn scheduling() {
    same_state(&["nice=7", "batch"]);
    assert_line(&same_state(&["affinity=0"]), "cpus 1: 0");
    same_state(&["slack=123456"]);
}

#[test]
fn directories_masks_and_filters() {
    assert_line(&same_state(&["umask=077"]), "umask 77");
    assert_line(&same_state(&["umask=0", "chdir=/"]), "cwd /");
    same_state(&["coredump=0x7f"]);
}

#[test]
fn oom_score() {
    assert_line(&same_state(&["oom=321"]), "/proc/self/oom_score_adj: 321");
}

#[test]
fn sessions_and_groups() {
    // Not a group leader, so that setsid(2) can succeed.
    let state = fat("state").build();
    need!("setsid");
    let cmd = Cmd::new([&state]).under(["setsid", "--wait"]);
    // Each run has a new session, and its parent is the waiting setsid.
    let stable = |text: &str| {
        let word = |line: &str| match line.split_once(", session leader ") {
            Some((_, rest)) if line.starts_with("parent ") => format!("session leader {rest}"),
            _ => line.to_string(),
        };
        let volatile = |l: &&str| {
            !l.starts_with("NSsid:") && !l.starts_with("PPid:") && !l.starts_with("/proc/self/autogroup")
        };
        text.lines().filter(volatile).map(word).collect::<Vec<_>>().join("\n")
    };
    each_backing(|options| {
        let outcome = same_lines(&cmd, options, stable);
        assert!(outcome.stdout.contains("leader yes, session "), "{outcome:?}");
        assert!(outcome.stdout.contains("session leader yes"), "{outcome:?}");
    });
}

#[test]
fn prctl_state() {
    assert!(same_state(&["pdeathsig=15"]).stdout.contains("pdeathsig 15, "));
    assert!(same_state(&["pdeathsig=9", "nnp"]).stdout.contains("no_new_privs 1"));
    assert!(same_state(&["cputimers"]).stdout.contains("itimer 1: armed, every 900.0"));
    assert!(same_state(&["alarm=100"]).stdout.contains("itimer 0: armed"));
}

/// A program that is a subreaper gets no orphan from the lift.
#[test]
fn as_a_subreaper() {
    let outcome = same_state(&["subreaper"]);
    assert!(outcome.stdout.contains("subreaper 1"), "{outcome:?}");
    assert_line(&outcome, "waitpid at first: none");
    assert_line(&outcome, "waitpid later: none");
    same_state(&["subreaper", "block=17"]);
    same_state(&["subreaper", "ignore=17"]);
}

/// A seccomp filter that allows tracing stays as it is.
#[test]
fn under_a_seccomp_filter() {
    need_root!();
    assert_line(&same_state(&["nosync"]), "Seccomp:\t2");
    let (setup, state) = (plain("setup").build(), fat("state").build());
    let cmd = Cmd::new([&state]).arg("an argument").under([&setup]).under(["nosync", "--"]);
    each_backing(|options| drop(same(&cmd, &[options, &["--seccomp", "try"]].concat())));
}

#[test]
fn environment_and_arguments() {
    let state = fat("state").build();
    let odd =
        [("EMPTY", ""), ("SPACE", " a  b "), ("LINES", "x\ny"), ("LD_BIND_NOW", "1"), ("HUGELIFT", "z")];
    let mut cmd = Cmd::new([&state]).arg("").arg(" a b ").arg("x\ny").arg("--").arg("-v").arg("\u{e9}");
    for (name, value) in odd {
        cmd = cmd.env(name, value);
    }
    each_backing(|options| drop(same(&cmd, options)));
    each_backing(|options| drop(same(&cmd.clone().clear_env(), options)));
    let bare = Cmd::new([&state]).clear_env();
    each_backing(|options| drop(same(&bare, options)));
}

/// Many arguments and variables: the auxiliary vector lies behind them, on a stack of megabytes.
#[test]
fn a_large_environment() {
    let state = fat("state").build();
    let mut cmd = Cmd::new([&state]).args((0..3000).map(|n| format!("argument-{n}")));
    for n in 0..3000 {
        cmd = cmd.env(format!("VARIABLE_{n}"), "v".repeat(200));
    }
    each_backing(|options| drop(same(&cmd, options)));
}

#[test]
fn name_as_given() {
    let state = fat("state").build();
    let dir = state.parent().expect("a parent").to_owned();
    let name = state.file_name().expect("a name").to_string_lossy().into_owned();
    // Under env, because the standard library starts a name and a path in two different ways.
    let env = crate::common::find("env").expect("env is everywhere");
    let through_path = Cmd::new([&name]).env("PATH", &dir).cwd("/").under([&env]);
    each_backing(|options| {
        let outcome = same(&through_path, options);
        assert!(outcome.stdout.contains(&format!("argv[0] {name}\n")), "{outcome:?}");
    });
    let relative = Cmd::new([format!("./{name}")]).cwd(&dir);
    each_backing(|options| {
        let outcome = same(&relative, options);
        assert!(outcome.stdout.contains(&format!("execfn ./{name}\n")), "{outcome:?}");
    });
}

/// Without ASLR the whole layout is the same: the same mappings, the same protections (RELRO, guard
/// pages), the same auxiliary vector. Only a position-independent executable is moved, as a whole.
#[test]
fn layout_without_aslr() {
    for flags in [&["-pie"][..], &["-no-pie"], &["-static"], &["-static-pie"], &["-Wl,-z,noseparate-code"]] {
        let state = fat("state").flags(flags).build();
        let cmd = Cmd::new([&state]).arg("fixed").under(["setarch", "-R"]);
        let bare = cmd.bare();
        assert_eq!(bare.stdout, cmd.bare().stdout, "two bare runs of the victim differ");
        each_backing(|options| {
            let lifted = same_as(&bare, &cmd, options, layout);
            assert!(lifted.stdout.contains("wrong 0\n"));
            assert!(
                maps(&lifted.stdout).all(|m| !m.1.starts_with("rwx") && !m.1.starts_with("-wx")),
                "{lifted:?}"
            );
            // "/anon_hugepage" is the kernel's name for memory from the pool.
            let is_file = |path: &str| path.starts_with('/') && !path.starts_with("/anon_hugepage");
            let paths = |o: &Outcome| maps(&o.stdout).map(|m| m.2).filter(|p| is_file(p)).collect::<Vec<_>>();
            assert!(paths(&lifted).iter().all(|p| paths(&bare).contains(p)), "{lifted:?}");
        });
    }
}

/// Returns the lines of a list of mappings: range, protection, path.
fn maps(text: &str) -> impl Iterator<Item = ((u64, u64), String, String)> {
    let lines = text.split_once("maps:\n").map_or("", |(_, rest)| rest).lines();
    lines.map_while(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let parse = |hex| u64::from_str_radix(hex, 16).ok();
        let prot = words.next()?.to_string();
        let path = words.nth(3).unwrap_or_default().to_string();
        Some(((parse(start)?, parse(end)?), prot, path))
    })
}

/// Returns the range from the first page of the executable to its last.
fn image(text: &str) -> (u64, u64) {
    let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let name = value("execfn ").expect("AT_EXECFN");
    let headers = u64::from_str_radix(value("auxv 3: ").expect("AT_PHDR"), 16).expect("a number");
    let last = maps(text).filter(|m| m.2 == name).map(|m| m.0.1).max().expect("the executable is mapped");
    // Its zeros follow without a gap.
    let zeros = |end: u64, m: &((u64, u64), String, String)| m.0.0 == end && m.2.is_empty();
    let end = maps(text).fold(last, |end, m| if zeros(end, &m) { m.0.1 } else { end });
    (headers & !4095, end)
}

/// Returns the list with neighbours of one protection joined and without what backs them, since a
/// lifted span differs only in these. Addresses in the executable are relative to its start.
fn layout(text: &str) -> String {
    if !text.contains("maps:\n") {
        return text.to_string(); // stderr
    }
    let (start, end) = image(text);
    let relative = |at: u64| if (start..=end).contains(&at) { at - start } else { at };
    let mut joined: Vec<((u64, u64), String)> = Vec::new();
    for (range, prot, _) in maps(text) {
        let range = (relative(range.0), relative(range.1));
        match joined.last_mut() {
            Some((last, p)) if last.1 == range.0 && *p == prot => last.1 = range.1,
            _ => joined.push((range, prot)),
        }
    }
    let is_map = |line: &&str| maps(&format!("maps:\n{line}\n")).next().is_none();
    let anchor = |line: &str| {
        let name = ["auxv 3: ", "auxv 9: "].into_iter().find(|name| line.starts_with(name))?;
        let at = u64::from_str_radix(line[name.len()..].trim(), 16).ok()?;
        Some(format!("{name}{:x}", relative(at)))
    };
    let others = text.lines().filter(is_map);
    let mut lines: Vec<String> = others.map(|line| anchor(line).unwrap_or_else(|| line.into())).collect();
    lines.extend(joined.into_iter().map(|((start, end), prot)| format!("{start:x}-{end:x} {prot}")));
    lines.join("\n")
}

/// With ASLR the layout is still random.
#[test]
fn aslr_stays() {
    let state = fat("state").build();
    let entry = |options: &[&str]| {
        let outcome = Cmd::new([&state]).arg("fixed").lifted(options);
        let line = outcome.stdout.lines().find(|l| l.starts_with("auxv 9: ")).map(String::from);
        assert!(line.as_ref().is_some_and(|l| !l.contains("GETAUXVAL DIFFERS")), "{outcome:?}");
        line
    };
    if std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|t| t.trim() == "0") {
        skip!("kernel.randomize_va_space is 0");
    }
    each_backing(|options| {
        let seen: std::collections::BTreeSet<Option<String>> = (0..6).map(|_| entry(options)).collect();
        assert!(seen.len() > 1, "always at {seen:?}");
    });
}

/// The process that was started as hugelift becomes the program, with the same pid.
#[test]
fn the_launcher_becomes_the_program() {
    let hold = fat("hold").build();
    each_backing(|options| {
        // Held::start waits until this very pid runs the program.
        let held = crate::common::Held::start(&Cmd::new([&hold]), Some(options), &hold);
        let threads = std::fs::read_dir(format!("/proc/{}/task", held.pid())).expect("task").count();
        assert_eq!(threads, 1);
        assert!(held.is_untraced());
        assert_eq!(held.finish().stdout, "wrong 0\nready\nwrong 0\n");
    });
}

/// In the foreground of a terminal the program has the terminal, and ^C reaches it.
#[test]
fn on_a_terminal() {
    let (tty, hold) = (plain("tty").build(), fat("hold").build());
    let cmd = Cmd::new([&hold]).under([&tty]);
    let bare = cmd.bare();
    assert!(bare.stdout.ends_with("\nkilled 2\n"), "{bare:?}");
    each_backing(|options| drop(same_as(&bare, &cmd, options, str::to_string)));
    let state = fat("state").build();
    let cmd = Cmd::new([&state]).under([&tty]);
    // A new session and a new parent at each run.
    let stable = |text: &str| {
        let of = |line: &&str| {
            !["parent ", "PPid:", "NSsid:", "/proc/self/autogroup"].iter().any(|k| line.starts_with(k))
        };
        text.lines().filter(of).map(|l| l.trim_end().to_string()).collect::<Vec<_>>().join("\n")
    };
    each_backing(|options| {
        let outcome = same_lines(&cmd, options, stable);
        assert!(outcome.stdout.contains("session leader yes, foreground yes"), "{outcome:?}");
    });
}

/// As pid 1 of a pid namespace the program is the parent of every orphan: there must be none.
#[test]
fn as_pid_one() {
    need_root!();
    need!("unshare");
    for flags in [&["-pie"][..], &["-static"]] {
        let state = fat("state").flags(flags).build();
        let cmd = Cmd::new([&state]).under(["unshare", "--pid", "--fork", "--mount-proc"]);
        let stable = |text: &str| {
            let of =
                |line: &&str| !line.starts_with("namespace ") && !line.starts_with("/proc/self/autogroup");
            text.lines().filter(of).collect::<Vec<_>>().join("\n")
        };
        each_backing(|options| {
            let outcome = same_lines(&cmd, options, stable);
            assert!(outcome.stdout.contains("parent 0, "), "{outcome:?}");
            assert_line(&outcome, "waitpid at first: none");
            assert_line(&outcome, "waitpid later: none");
            assert_line(&outcome, "children later: ''");
        });
    }
}

#[test]
fn in_a_user_namespace() {
    need!("unshare");
    let state = fat("state").build();
    let cmd = Cmd::new([&state]).under(["unshare", "--user", "--map-root-user"]);
    if cmd.bare().end != End::Code(0) {
        skip!("user namespaces are not permitted");
    }
    let stable =
        |text: &str| text.lines().filter(|l| !l.starts_with("namespace ")).collect::<Vec<_>>().join("\n");
    each_backing(|options| drop(same_lines(&cmd, options, stable)));
}

/// Returns words of setpriv(1), the reference, that run the rest of a command as another user.
fn as_user(words: &[&str]) -> Vec<String> {
    ["setpriv"].iter().chain(words).map(|w| (*w).to_string()).collect()
}

#[test]
fn as_an_unprivileged_user() {
    need_root!();
    need!("setpriv");
    let state = fat("state").build();
    let dir = open_dir(&[&state]);
    let copy = |p: &Path| dir.path().join(p.file_name().expect("a name"));
    let nobody = as_user(&["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let cmd =
        Cmd::new([copy(&state)]).cwd("/").under(&nobody).launcher(copy(Path::new(crate::common::HUGELIFT)));
    each_backing(|options| {
        let outcome = same(&cmd, options);
        assert!(outcome.stdout.contains("Uid:\t65534\t65534\t65534\t65534"), "{outcome:?}");
    });
}

/// `--user` by name and by number, with a group and with supplementary groups.
#[test]
fn user_option() {
    need_root!();
    need!("setpriv", "unshare");
    let state = fat("state").build();
    let dir = open_dir(&[&state]);
    let program = dir.path().join(state.file_name().expect("a name"));
    // A user of this test, in files that only its mount namespace sees.
    let groups =
        "root:x:0:\nlifters:x:4321:\nextra:x:4322:lifter,other\nmore:x:4323:lifter\nnot:x:4324:other\n";
    let users = "root:x:0:0:root:/root:/bin/sh\nlifter:x:4320:4321::/home/lifter:/bin/sh\n";
    std::fs::write(dir.path().join("group"), groups).expect("write");
    std::fs::write(dir.path().join("passwd"), users).expect("write");
    let private = format!(
        "mount --bind {0}/group /etc/group && mount --bind {0}/passwd /etc/passwd && exec \"$@\"",
        dir.path().display()
    );
    let within = ["unshare", "--mount", "sh", "-c", &private, "sh"];
    let stable =
        |text: &str| text.lines().filter(|l| !l.starts_with("namespace mnt")).collect::<Vec<_>>().join("\n");
    for (user, uid, gid, groups) in [
        ("lifter", "4320", "4321", "4321,4322,4323"),
        ("4320", "4320", "4321", "4321,4322,4323"),
        ("lifter:extra", "4320", "4322", "4322,4323"),
        ("lifter:4324", "4320", "4324", "4322,4323,4324"),
        ("4320:4322", "4320", "4322", "4322,4323"),
        ("0", "0", "0", "0"),
    ] {
        let reference =
            [&format!("--reuid={uid}")[..], &format!("--regid={gid}"), &format!("--groups={groups}")];
        let bare = Cmd::new([&program]).cwd("/").under(within).under(as_user(&reference)).bare();
        assert_eq!(bare.end, End::Code(0), "{bare:?}");
        let cmd = Cmd::new([&program]).cwd("/").under(within);
        each_backing(|options| {
            same_as(&bare, &cmd, &[options, &["--user", user]].concat(), stable);
        });
    }
    let unknown = Cmd::new([&program]).lifted(&["--user", "nobody-of-that-name"]);
    assert_eq!((unknown.end, unknown.stdout.as_str()), (End::Code(125), ""), "{unknown:?}");
    assert_eq!(unknown.own_lines().len(), 1, "{unknown:?}");
}
