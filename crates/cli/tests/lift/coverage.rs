// SPDX-License-Identifier: Apache-2.0
//! After `hugelift run`, every whole huge page inside the text and the read-only data of
//! every object is huge, as smaps shows it, and holds the bytes that it held.

use crate::common::held::needed;
use crate::common::huge::{assert_lifted, assert_no_wx, assert_unchanged, pieces};
use crate::common::{Cmd, End, Held, build::must, each_backing, fat, find, fits, same};
use crate::{need, skip};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the command lifted with each backing until it waits for its stdin as `program`, and
/// examines it from outside.
fn covered(cmd: &Cmd, program: &Path) {
    let objects = needed(program);
    each_backing(|options| {
        let held = Held::start(cmd, Some(options), program);
        let what = format!("{} {options:?}", program.display());
        let pieces = pieces(held.pid(), &objects);
        assert!(pieces.len() >= 2, "{what}: too few segments found: {pieces:?}");
        assert!(assert_lifted(&pieces, options[1], &what) > 0, "{what}: nothing to lift, so nothing tested");
        assert_unchanged(held.pid(), &pieces);
        assert_no_wx(held.pid(), &pieces);
        let outcome = held.finish();
        assert_eq!(outcome.own_lines(), Vec::<&str>::new(), "{what}");
    });
}

fn covered_victim(victim: &crate::common::Victim) {
    let program = victim.build();
    covered(&Cmd::new([&program]), &program);
}

#[test]
fn dynamic_pie() {
    covered_victim(&fat("hold"));
}

#[test]
fn dynamic_at_a_fixed_address() {
    covered_victim(&fat("hold").flags(&["-no-pie"]));
}

#[test]
fn static_program() {
    covered_victim(&fat("hold").flags(&["-static"]));
}

#[test]
fn static_pie() {
    covered_victim(&fat("hold").flags(&["-static-pie"]));
}

#[test]
fn segments_aligned_to_huge_pages() {
    covered_victim(&fat("hold").flags(&["-Wl,-z,max-page-size=0x200000,-z,common-page-size=0x200000"]));
}

/// Code, constants and headers in one executable segment.
#[test]
fn one_segment_for_code_and_constants() {
    covered_victim(&fat("hold").flags(&["-Wl,-z,noseparate-code"]));
}

#[test]
fn musl_dynamic() {
    need!("x86_64-linux-musl-gcc");
    covered_victim(&fat("hold").compiler("x86_64-linux-musl-gcc"));
}

#[test]
fn musl_static() {
    need!("x86_64-linux-musl-gcc");
    covered_victim(&fat("hold").compiler("x86_64-linux-musl-gcc").flags(&["-static"]));
}

/// Returns a program with five shared objects, each with megabytes of text.
fn five_parts() -> PathBuf {
    let part = |n: u32| fat("part").size(4 << 20).library().flags(&[&format!("-DPART={n}")]).build();
    (1..=5).fold(crate::common::plain("parts"), |victim, n| victim.with(part(n))).build()
}

#[test]
fn five_shared_objects() {
    let program = five_parts();
    covered(&Cmd::new([&program]), &program);
    let cmd = Cmd::new([&program]);
    each_backing(|options| {
        let held = Held::start(&cmd, Some(options), &program);
        let parts: Vec<_> = pieces(held.pid(), &needed(&program))
            .into_iter()
            .filter(|p| p.text && p.inner.is_some() && p.object.to_string_lossy().contains("part-"))
            .collect();
        assert_eq!(parts.len(), 5, "{parts:?}");
        assert_eq!(held.finish().stdout, "wrong 0 0 0 0 0\nready\n");
    });
}

/// The program itself compares its segments with their files.
#[test]
fn the_program_sees_its_own_bytes() {
    for flags in [&["-pie"][..], &["-static"], &["-no-pie"]] {
        let program = fat("sums").flags(flags).build();
        each_backing(|options| {
            let outcome = same(&Cmd::new([&program]), options);
            assert!(
                outcome.stdout.contains(" text ") && outcome.stdout.ends_with("wrong 0\n"),
                "{outcome:?}"
            );
            assert!(!outcome.stdout.contains("DIFFERS"), "{}", outcome.stdout);
        });
    }
}

#[test]
fn node() {
    need!("node");
    let script = "process.stdin.resume(); process.stdin.on('end', () => {})";
    covered(&Cmd::new(["node", "-e", script]), &find("node").expect("needed above"));
}

#[test]
fn clang() {
    let names =
        ["clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14"];
    let Some(clang) = names.iter().find_map(|name| find(name)) else { skip!("needs clang++") };
    // -cc1, as otherwise the driver starts a second process that reads stdin.
    covered(&Cmd::new([&clang]).arg("-cc1").arg("-fsyntax-only").arg("-"), &clang);
}

#[test]
fn rustc() {
    need!("rustc");
    let sysroot = must(Command::new("rustc").args(["--print", "sysroot"]));
    let rustc = Path::new(sysroot.trim()).join("bin/rustc");
    covered(&Cmd::new([&rustc]).arg("-"), &rustc);
}

#[test]
fn mariadbd() {
    need!("mariadbd");
    let dir = crate::common::open_dir(&[]);
    let data = format!("--datadir={}", dir.path().display());
    let log = format!("--log-error={}/log", dir.path().display());
    let user = if nix::unistd::geteuid().is_root() { "--user=root" } else { "--silent-startup" };
    let words = ["mariadbd", "--no-defaults", "--bootstrap", "--skip-networking", &data, &log, user];
    covered(&Cmd::new(words), &find("mariadbd").expect("needed above"));
}

#[test]
fn python() {
    need!("python3");
    // python3 may be a wrapper script: asks for the executable, which is examined only if it has a
    // whole huge page.
    let python =
        PathBuf::from(must(Command::new("python3").args(["-c", "import sys; print(sys.executable)"])).trim());
    let python = python.canonicalize().expect("sys.executable is there");
    let cmd = Cmd::new([&python]).arg("-c").arg("import sys; sys.stdin.read()");
    let held = Held::start(&cmd, None, &python);
    let any = pieces(held.pid(), &needed(&python)).iter().any(|p| p.inner.is_some());
    drop(held);
    if any {
        covered(&cmd, &python);
    } else {
        // No part of it is large enough: it runs, and hugelift is silent.
        each_backing(|options| drop(same(&Cmd::new([&python]).arg("-c").arg("print(1)"), options)));
    }
}

#[test]
fn go_program() {
    need!("go");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "package main\nimport (\"bufio\"; \"fmt\"; \"net/http\"; \"os\")\n\
        func main() { fmt.Println(http.StatusText(200)); \
        if len(os.Args) > 1 { http.ListenAndServe(os.Args[1], nil) }; bufio.NewReader(os.Stdin).ReadString('\\n') }\n";
    std::fs::write(dir.path().join("main.go"), source).expect("write the source");
    let program = dir.path().join("main");
    must(Command::new("go").current_dir(&dir).args(["build", "-o", "main", "main.go"]));
    covered(&Cmd::new([&program]), &program);
}

/// Without ASLR `[heap]` begins right behind `.bss`. It must survive the lift, and still grow.
#[test]
fn the_heap_grows() {
    for flags in [&["-pie"][..], &["-static"], &["-no-pie"], &["-static-pie"]] {
        let program = fat("heap").flags(flags).build();
        for before in [&[][..], &["setarch", "-R"]] {
            let cmd = Cmd::new([&program]).under(before);
            each_backing(|options| {
                let outcome = cmd.lifted(options);
                assert_eq!(outcome.end, End::Code(0), "{cmd:?} {options:?}: {outcome:?}");
                assert!(outcome.stdout.starts_with("heap grows"), "{outcome:?}");
                assert!(outcome.stdout.ends_with("wrong 0\n"), "{outcome:?}");
                assert_eq!(outcome.stderr, "", "{outcome:?}");
            });
        }
    }
}

/// The report agrees with smaps.
#[test]
fn the_report_is_what_smaps_shows() {
    let program = fat("hold").build();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("report.json");
    let path = file.display().to_string();
    each_backing(|options| {
        let options = [options, &["--report", &path]].concat();
        let held = Held::start(&Cmd::new([&program]), Some(&options), &program);
        let text = std::fs::read_to_string(&file).expect("the report exists when the program runs");
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        fits("report", &report);
        let pieces = pieces(held.pid(), &needed(&program));
        for (part, is_text) in [("text", true), ("rodata", false)] {
            let of = |object: &Path| -> u64 {
                pieces.iter().filter(|p| p.object == object && p.text == is_text).map(|p| p.huge).sum()
            };
            let objects = report["objects"].as_array().expect("objects");
            let mut seen = 0;
            for object in objects {
                let path = Path::new(object["path"].as_str().expect("a path"));
                if !pieces.iter().any(|p| p.object == path) {
                    continue;
                }
                let parts = object["parts"].as_array().expect("parts").iter().filter(|p| p["part"] == part);
                let huge: u64 = parts.map(|p| p["huge_bytes"].as_u64().expect("huge_bytes")).sum();
                assert_eq!(huge, of(path), "{part} of {}: {text}", path.display());
                seen += huge;
            }
            assert!(seen >= 4 << 20, "{part}: only {seen} bytes: {text}");
            assert_eq!(report["totals"][part]["huge_bytes"], seen, "{text}");
            assert_eq!(report["totals"][part]["liftable_bytes"], seen, "{text}");
        }
        assert_eq!(held.finish().stderr, "");
    });
}

/// What `--parts` and `--object` do not name is not lifted.
#[test]
fn only_what_is_asked_for() {
    let program = fat("hold").build();
    let name = program.file_name().expect("a name").to_string_lossy().into_owned();
    let huge = |options: &[&str]| {
        let held = Held::start(&Cmd::new([&program]), Some(options), &program);
        let pieces = pieces(held.pid(), &needed(&program));
        [true, false].map(|text| pieces.iter().filter(|p| p.text == text).map(|p| p.thp).sum::<u64>() > 0)
    };
    assert_eq!(huge(&["--backing", "thp"]), [true, true]);
    assert_eq!(huge(&["--backing", "thp", "--parts", "text"]), [true, false]);
    assert_eq!(huge(&["--backing", "thp", "--parts", "rodata"]), [false, true]);
    assert_eq!(huge(&["--backing", "thp", "--object", &name]), [true, true]);
    assert_eq!(huge(&["--backing", "thp", "--object", "other*"]), [false, false]);
    assert_eq!(huge(&["--backing", "thp", "--exclude", &name]), [false, false]);
}

/// `--dry-run` starts nothing and changes nothing.
#[test]
fn dry_run_starts_nothing() {
    let program = fat("hold").build();
    let outcome = Cmd::new([&program]).lifted(&["--backing", "thp", "--dry-run"]);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    assert!(!outcome.stdout.contains("ready"), "the program ran: {outcome:?}");
    assert!(outcome.stdout.contains("hold-"), "the plan does not name the program: {outcome:?}");
}
