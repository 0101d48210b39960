// SPDX-License-Identifier: Apache-2.0
//! perf(1) names the functions of lifted code, on every backing.

use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT, Held, Way, each_way, fat, find};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn perf_map_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// Copies in anonymous memory have a file of names for perf, as long as the program lives and
/// readable only by its user. Mapped files need none.
#[test]
fn a_map_names_what_no_file_does() {
    each_way(&fat("hold").build(), |way| {
        let options = [&way.options()[..], &["--perf-map"]].concat();
        let held = Held::start(&way.cmd(&[]), Some(&options), &way.program);
        let path = perf_map_of(held.pid());
        if !way.is_anonymous() {
            assert!(!path.exists(), "{}", way.backing);
            assert_eq!(held.finish().stderr, "");
            return;
        }
        until("written", || std::fs::read_to_string(&path).is_ok_and(|t| t.contains(" fat_code\n")));
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::symlink_metadata(&path).expect("stat");
        assert!(
            meta.is_file() && meta.mode() & 0o777 == 0o600 && meta.uid() == nix::unistd::geteuid().as_raw()
        );
        // The code is at the address that the file gives.
        let text = std::fs::read_to_string(&path).expect("read");
        let line = text.lines().find(|l| l.ends_with(" fat_code")).expect("fat_code");
        let start = u64::from_str_radix(line.split(' ').next().expect("a word"), 16).expect("an address");
        let within = hugelift_core::addr::Addr(start + (2 << 20));
        let usage = crate::common::huge::smaps(held.pid());
        let at = usage.iter().find(|u| u.mapping.range.contains(within));
        assert!(at.is_some_and(|u| u.mapping.prot.exec && u.huge() > 0), "{at:?}");
        assert_eq!(held.finish().stderr, "");
        until("removed", || !path.exists());
    });
}

/// Names are those of the source, as perf prints them for files if it can demangle them. With
/// `=mangled` they are those of the symbol table, as perf prints them if it cannot.
#[test]
fn b5_names_are_demangled_and_match_perfs_own() {
    need!("objcopy", "perf");
    let dir = tempfile::TempDir::new().expect("a directory");
    for (mangled, readable) in [
        ("_ZN4deep6WorkerIiE4burnEiRKS1_", "deep::Worker<int>::burn"),
        ("_ZN4deep6worker4burn17h0123456789abcdefE", "deep::worker::burn"),
        ("_RNvNtC4deep6worker4burn", "deep::worker::burn"),
    ] {
        let program = dir.path().join(mangled);
        let renamed = format!("--redefine-sym=fat_code={mangled}");
        // Without a build id, because perf would take the symbols of another file with the same
        // one.
        let mut objcopy = Command::new("objcopy");
        objcopy.args([&renamed, "--remove-section=.note.gnu.build-id"]).arg(fat("hold").build());
        let out = objcopy.arg(&program).output();
        assert!(out.is_ok_and(|out| out.status.success()), "objcopy");
        let ends_with = |option: &str, name: &str| {
            let held = Held::start(&Cmd::new([&program]), Some(&["--backing", "thp", option]), &program);
            let path = perf_map_of(held.pid());
            let line = format!(" {name}\n");
            until("written", || std::fs::read_to_string(&path).is_ok_and(|text| text.contains(&line)));
            assert_eq!(held.finish().stderr, "");
        };
        ends_with("--perf-map", readable);
        ends_with("--perf-map=mangled", mangled);
        // How perf prints the symbol of a file.
        let data = dir.path().join("data");
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "--no-buildid-cache", "-e", "cpu-clock", "-o"]).arg(&data);
        perf.args(["--", "sh", "-c", "sleep 1 | exec \"$@\"", "sh"]).arg(&program).arg("burn");
        let out = perf.stdin(std::process::Stdio::null()).output().expect("perf");
        if !out.status.success() {
            skip!("perf record: {}", String::from_utf8_lossy(&out.stderr));
        }
        let mut report = Command::new("perf");
        report.args(["report", "-g", "none", "--stdio", "--sort", "symbol", "-i"]).arg(&data);
        let report = report.output().expect("perf");
        let text = String::from_utf8_lossy(&report.stdout).into_owned();
        // Empty columns follow the name.
        let names = text.lines().filter_map(|line| line.split_once("[.] ")?.1.split("  ").next());
        let own = { names }.find(|name| name.contains("burn")).unwrap_or_else(|| panic!("{text}"));
        assert!([mangled, readable].contains(&own), "perf says {own:?} for {mangled}");
    }
}

/// If the path of the map is already taken, nothing is written there, and the program runs.
#[test]
fn a_planted_map_is_not_written_to() {
    need_root!();
    let hold = fat("hold").build();
    // The process plants the link itself, because only it knows its pid beforehand.
    let plant = "ln -s /nowhere /tmp/perf-$$.map; exec \"$@\"";
    let cmd = Cmd::new([&hold]).under(["sh", "-c", plant, "sh"]);
    let held = Held::start(&cmd, Some(&["--backing", "thp", "--perf-map"]), &hold);
    let path = perf_map_of(held.pid());
    assert_eq!(std::fs::read_link(&path).ok(), Some(PathBuf::from("/nowhere")));
    let outcome = held.finish();
    std::fs::remove_file(&path).expect("remove the link");
    assert_eq!(outcome.stdout, "wrong 0\nready\nwrong 0\n");
}

/// Runs `perf record` with `args`. Returns `None`, and reports a skip, if this machine does not
/// allow it.
fn record(data: &Path, args: &[&str], way: &Way) -> Option<Output> {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(data).args(args).env_remove("HUGELIFT_STORE");
    let held = way.cmd(&[]).command(None);
    perf.envs(held.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let out = perf.stdin(std::process::Stdio::null()).output().expect("perf");
    if !out.status.success() {
        crate::common::skipped(&format!("perf record: {}", String::from_utf8_lossy(&out.stderr)));
        return None;
    }
    Some(out)
}

/// Returns the line of `perf report` about fat_code: share, object and symbol.
fn line_of(data: &Path) -> String {
    let args = ["--stdio", "-g", "none", "--sort", "dso,symbol"];
    let report = Command::new("perf").arg("report").arg("-i").arg(data).args(args).output().expect("perf");
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let line = text.lines().find(|l| l.contains(" fat_code"));
    line.unwrap_or_else(|| panic!("{text}")).to_string()
}

/// A perf that attaches to a running program finds the program's file, the store's file, or the
/// map.
#[test]
fn perf_report_of_a_running_program() {
    need!("perf");
    each_way(&fat("hold").build(), |way| {
        let options = [&way.options()[..], &["--perf-map"]].concat();
        let held = Held::start_busy(&way.cmd(&["burn"]), Some(&options), &way.program);
        let pid = held.pid().to_string();
        if way.is_anonymous() {
            let path = perf_map_of(held.pid());
            until("written", || std::fs::read_to_string(&path).is_ok_and(|t| t.contains(" fat_code\n")));
        }
        let dir = tempfile::TempDir::new().expect("a directory");
        let data = dir.path().join("data");
        if record(&data, &["-p", &pid, "--", "sleep", "1"], way).is_none() {
            return;
        }
        let line = line_of(&data);
        let own = way.program.file_name().expect("a name").to_string_lossy().into_owned();
        let object = match way.backing {
            "pagecache" => own,
            "shared" => {
                let maps = held.proc("maps");
                let path = maps.lines().filter_map(|l| l.split('/').next_back());
                path.filter(|n| n.len() == 64).map(str::to_string).next().expect("an entry")
            }
            // The name that perf gives the map.
            _ => format!("[JIT] tid {pid}"),
        };
        assert!(line.contains(&object), "{}: {object}: {line}", way.backing);
        assert_eq!(held.finish().end, End::Code(0));
    });
}

/// A perf that runs from the start names the program's own file with every backing, without a map,
/// because the kernel does not notify it of the move.
#[test]
fn perf_report_from_the_start() {
    need!("perf");
    each_way(&fat("hold").build(), |way| {
        let dir = tempfile::TempDir::new().expect("a directory");
        let data = dir.path().join("data");
        let program = way.program.display().to_string();
        let shell = ["--", "sh", "-c", "sleep 2 | exec \"$@\"", "sh", HUGELIFT, "run"];
        let args = [&shell[..], &way.options(), &[&program, "burn"]].concat();
        let Some(out) = record(&data, &args, way) else { return };
        assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{}", way.backing);
        let line = line_of(&data);
        let own = way.program.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(line.contains(&own), "{}: {line}", way.backing);
    });
}

/// For other programs an entry of the store is a correct ELF file.
#[test]
fn an_entry_is_an_elf_file() {
    need!("readelf");
    each_way(&fat("hold").build(), |way| {
        if way.backing != "shared" {
            return;
        }
        let held = Held::start(&way.cmd(&[]), Some(&way.options()), &way.program);
        let maps = held.proc("maps");
        let mut paths = maps.lines().filter_map(|l| l.find('/').map(|at| &l[at..]));
        let entry = paths.find(|p| p.starts_with("/dev/shm/")).expect("an entry");
        let out = Command::new(find("readelf").expect("readelf")).arg("-aW").arg(entry).output();
        let out = out.expect("readelf");
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.lines().any(|l| l.contains(" FUNC ") && l.ends_with(" fat_code")), "{text}");
        assert_eq!(held.finish().end, End::Code(0));
    });
}
