// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate`: real programs run from separated files with all their separated shared
//! objects, and all of their code is huge in the page cache.

use crate::align::cache::huge;
use crate::align::relaid::align;
use crate::common::build::must;
use crate::common::run::difference;
use crate::common::{Cmd, End, HUGELIFT, fat, find, fits, skipped};
use crate::need;
use hugelift_core::elf::Headers;
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The code that a test separates, however little it is.
pub const ALL: [&str; 3] = ["--separate", "--least", "1"];

/// Programs by their name in PATH, with arguments that make their output repeatable.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("perl", &["-e", "my %h; $h{$_ % 977} += $_ for 1..100000; print join ',', map { $h{$_} } sort keys %h"]),
    (
        "php",
        &["-r", "try { throw new Exception('x'); } catch (Exception $e) { echo hash('sha256', 'y'), 1; }"],
    ),
    ("git", &["--version"]),
    ("bash", &["-c", "for i in {1..1000}; do ((s += i)); done; echo $s"]),
    ("mariadbd", &["--no-defaults", "--version"]),
    ("postgres", &["--version"]),
    ("ruby", &["-e", "begin; raise 'x'; rescue => e; puts e.message * 3, (1..999).sum; end"]),
    ("gdb", &["-nx", "-batch", "-ex", "print 6*7"]),
    ("openssl", &["version"]),
    ("sqlite3", &[":memory:", "select sum(value) from generate_series(1, 1000)"]),
    ("curl", &["--version"]),
    ("ssh", &["-V"]),
    ("awk", &["BEGIN { for (i = 0; i < 1000; i++) s += i; print s }"]),
    ("sed", &["--version"]),
    ("ls", &["--version"]),
    ("ninja", &["--version"]),
    ("objdump", &["--version"]),
];

/// More programs, run with `--version` if HUGELIFT_CORPUS is `all`. What does not know this option ends with the same
/// message.
const MORE: &str = "
    addr2line appstreamcli apt apt-cache ar as b2sum base64 bc btrfs busctl bzip2 c++filt chattr clang++-19 cmake cmp
    column comm cp cpack cscope ctags ctest cut dash date dbus-daemon dbus-send dc dd derb df diff diff3 dirmngr dmesg
    dpkg dpkg-deb dpkg-query du dwp ed elfedit env envsubst eqn expand factor fc-cache fc-list fc-match file find
    findmnt flock fmt fold fuser gdbus gencat gencnval gendict genrb getconf getent getopt gettext gio glib-compile-schemas
    gmake gold gp-archive gp-display-text gpg gpg-agent gpgconf gpgsm gpgv gprof gprofng grep groff grotty gzip head
    hexdump iconv icuinfo id infocmp install ip join journalctl jq kmod ld.bfd ld.gold ld.lld-19
    ld.mold less lexgrog locale localedef localectl logger look lsblk lscpu lsof lz4 make man mandb mawk md5sum
    ministat mkdir mktemp msgcat msgfmt msgmerge nawk networkctl ninja nl nm nproc numfmt objcopy od osslsigncode
    patch perf pgrep pic pkg-config pkgdata pngfix pr printf ps pstree ptx pzstd qemu-system-aarch64 qemu-system-x86_64
    ranlib readelf realpath redis-benchmark redis-cli redis-server rev rpcgen script sdiff seq sftp sha256sum shuf
    size sort split ss ssh-add ssh-keygen ssh-keyscan stat strace strings strip sum sysbench systemctl systemd-analyze
    systemd-run systemd-tmpfiles tac tail tar taskset tbl tclsh8.6 tee tic timeout tmux top tr troff tsort uconv uniq unshare
    unzip uptime valgrind.bin vdir vim vmstat wasm-ld-19 wc wget whereis xargs xgettext xxd xz zip zstd
";

/// Separates `input` into `folder`. Returns why not, if the command refused.
fn separated(input: &Path, folder: &Path) -> Result<PathBuf, String> {
    let output = folder.join(input.file_name().expect("a name"));
    let out = align(input, &output, &ALL);
    match out.status.success() {
        true => Ok(output),
        false => Err(String::from_utf8_lossy(&out.stderr).trim_end().to_string()),
    }
}

pub fn folder() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("separate-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    dir.expect("a temporary directory")
}

/// Returns the program and the shared objects that it needs, with the names that their users state. The loader
/// is not among them.
fn objects(program: &Path) -> Vec<(String, PathBuf)> {
    let listed = must(Command::new("ldd").arg(program));
    let object = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let path = Path::new(rest.split_whitespace().next()?).canonicalize().ok()?;
        Some((name.to_string(), path))
    };
    let own = program.file_name().expect("a name").to_string_lossy().into_owned();
    [(own, program.to_owned())].into_iter().chain(listed.lines().filter_map(object)).collect()
}

/// Checks that all code of a file lies in whole huge pages, and that all of those are huge in the page cache.
/// Returns the bytes of code, and whether the page cache has huge pages at all.
pub fn code_is_huge(original: &Path, copy: &Path) -> (u64, bool) {
    // This comes first: reading the copy fills the page cache with small pages.
    let (wanted, got) = huge(copy);
    let [before, after] = [original, copy].map(|path| {
        let headers = Headers::parse(&std::fs::read(path).expect("read")).expect("an ELF file");
        headers.segments.into_iter().filter(|s| s.prot.exec).collect::<Vec<_>>()
    });
    let mut code = 0;
    for (old, new) in before.iter().zip(&after) {
        let (start, end) = (new.vaddr, (new.vaddr + new.filesz).next_multiple_of(4096));
        assert_eq!((start % (2 << 20), end % (2 << 20)), (0, 0), "{}: {new:?}", copy.display());
        assert_eq!(new.offset % (2 << 20), 0, "{}", copy.display());
        code += old.filesz;
    }
    assert!(wanted >= code, "{}", copy.display());
    assert!(got == wanted || got == 0, "{}: {got} of {wanted} bytes are huge", copy.display());
    (code, got > 0)
}

#[test]
fn programs_run_from_separated_files_and_all_their_code_is_huge() {
    let (mut ran, mut files, mut code, mut no_pages) = (0, BTreeSet::new(), 0, false);
    let (dir, plain) = (folder(), folder());
    let mut copies = BTreeSet::new();
    let mut kept = Vec::new();
    let all = std::env::var("HUGELIFT_CORPUS").is_ok_and(|value| value == "all");
    let more = MORE.split_whitespace().map(|name| (name, &["--version"][..]));
    for (name, args) in PROGRAMS.iter().copied().chain(more.filter(|_| all)) {
        let sbin = || Some(Path::new("/usr/sbin").join(name)).filter(|path| path.exists());
        let Some(program) = find(name).or_else(sbin).and_then(|path| path.canonicalize().ok()) else {
            continue;
        };
        // A script of a version manager.
        if !std::fs::read(&program).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")) {
            continue;
        }
        let mut own = None;
        for (stated, real) in objects(&program) {
            let made = match files.insert(real.clone()) {
                true => separated(&real, dir.path()).inspect(|copy| {
                    let (bytes, some) = code_is_huge(&real, copy);
                    code += bytes;
                    no_pages |= !some;
                    copies.insert(copy.clone());
                }),
                false => Ok(dir.path().join(real.file_name().expect("a name"))),
            };
            // Another program may have the same object, which was refused.
            let made = made.and_then(|copy| match copies.contains(&copy) {
                true => Ok(copy),
                false => Err(format!("{}: as before", real.display())),
            });
            match made {
                Ok(copy) => {
                    let wanted = dir.path().join(stated);
                    if wanted != copy && !wanted.exists() {
                        std::os::unix::fs::symlink(&copy, &wanted).expect("symlink");
                    }
                    if real == program {
                        own = Some(copy);
                    }
                }
                Err(why) => kept.push(why),
            }
        }
        let Some(copy) = own.filter(|copy| copies.contains(copy)) else { continue };
        // Some programs look for their files beside themselves: the original runs from another folder too.
        let elsewhere = plain.path().join(copy.file_name().expect("a name"));
        crate::common::cache::copy(&program, &elsewhere);
        let bare = Cmd::new([&elsewhere]).args(args).bare();
        let again = Cmd::new([&copy]).args(args).env("LD_LIBRARY_PATH", dir.path()).bare();
        assert_eq!(again.end, bare.end, "{name}: {}", again.stderr);
        for (what, a, b) in [("stdout", &bare.stdout, &again.stdout), ("stderr", &bare.stderr, &again.stderr)]
        {
            // Some programs print their own path.
            let b = b.replace(&*dir.path().to_string_lossy(), &plain.path().to_string_lossy());
            if let Some(lines) = difference(what, a, &b) {
                panic!("{name}: {lines}");
            }
        }
        ran += u32::from(bare.end == End::Code(0));
    }
    println!("{ran} programs from {} separated files with {} kB of code", copies.len(), code >> 10);
    kept.iter().for_each(|why| println!("not separated: {why}"));
    assert!(copies.len() > kept.len(), "{} of {} files were refused", kept.len(), files.len());
    if no_pages {
        skipped("this file system has no huge pages in the page cache");
    }
    if ran < 8 {
        skipped(&format!("only {ran} of 8 programs are on this machine"));
    }
}

/// What was separated is as it should be: a second run has nothing to do, a dry run writes nothing, and the
/// report says what it costs.
#[test]
fn the_command_says_what_it_does() {
    let (dir, program) = (folder(), fat("sums").build());
    let at = |name: &str| dir.path().join(name);
    let dry = align(&program, &at("dry"), &["--separate", "--dry-run", "--json"]);
    assert!(dry.status.success() && !at("dry").exists(), "{dry:?}");
    let said: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    fits("align-separate", &said);
    assert_eq!((&said["version"], &said["output"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(said["separated"], "code");
    let code = said["segments"].as_array().expect("segments").iter().find(|s| s["prot"] == "r-x");
    let code = code.expect("a segment with code");
    let number = |name: &str| code[name].as_u64().expect("a number");
    assert!(number("huge_bytes_after") - number("padding_in_huge_bytes") >= number("bytes"), "{said}");
    assert_eq!(number("huge_bytes_after") % (2 << 20), 0);

    let out = align(&program, &at("copy"), &["--separate"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("of memory, one copy a machine"), "{out:?}");
    assert!(text.contains("build-id is still that of the original"), "{text}");
    let unnamed = fat("sums").flags(&["-Wl,--build-id=none"]).build();
    let out = align(&unnamed, &at("unnamed"), &["--separate"]);
    assert!(out.status.success() && !String::from_utf8_lossy(&out.stdout).contains("build-id"), "{out:?}");
    let bare = Cmd::new([&program]).bare();
    assert_eq!(bare.end, End::Code(0));
    // It prints the lengths of its segments, of which one is longer now.
    let again = Cmd::new([&at("copy")]).bare();
    assert_eq!(again.end, End::Code(0), "{again:?}");
    assert!(again.stdout.ends_with("wrong 0\n") && bare.stdout.ends_with("wrong 0\n"), "{again:?}");
    for (input, options, status, words) in [
        (at("copy"), &["--separate"][..], 1, "has huge pages of its own already"),
        (find("ls").expect("ls"), &["--separate"][..], 1, "nothing to gain"),
        (
            fat("sums").flags(&["-no-pie", "-Wl,-z,noseparate-code"]).build(),
            &["--separate"][..],
            125,
            "fixed addresses",
        ),
        (program.clone(), &["--least", "1M"][..], 125, "--separate"),
    ] {
        let out = align(&input, &at("none"), options);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{said}");
        assert!(said.contains(words) && !at("none").exists(), "{said}");
    }
}

/// A copy has no name before it is complete.
#[test]
fn a_killed_command_leaves_nothing() {
    let (dir, program) = (folder(), fat("sums").build());
    let nameless = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(dir.path());
    if nameless.is_err() {
        return println!("SKIP: this file system has no files without a name");
    }
    let mut killed = 0;
    for delay in (0..12).map(|doubled| Duration::from_millis(1 << doubled)) {
        let mut command = Command::new(HUGELIFT);
        command.args(["align", "--separate"]).arg(&program).arg("-o").arg(dir.path().join("copy"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start hugelift");
        std::thread::sleep(delay);
        child.kill().expect("kill a child that was not waited for");
        if child.wait().expect("wait").success() {
            break;
        }
        killed += 1;
        let left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("list")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        if left == ["copy"] {
            // It was killed after its work, before its end.
            must(&mut Command::new(dir.path().join("copy")));
            break;
        }
        assert!(left.is_empty(), "{left:?}");
    }
    assert!(killed >= 3, "only {killed} were killed before their end");
}

/// C++ exceptions, thread-local data, jump tables, constructors, lazy binding and symbols in gdb.
#[test]
fn code_of_every_kind_works_after_its_move() {
    need!("g++", "gdb");
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.cc"), SOURCE).expect("write");
    let forms: &[&[&str]] = &[
        &["-O2"],
        &["-O0"],
        &["-O2", "-Wl,-z,lazy"],
        &["-O2", "-static-pie"],
        &["-O2", "-Wl,-z,pack-relative-relocs"],
        &["-O2", "-s"],
        &["-O2", "-fuse-ld=gold"],
    ];
    let mut done = 0;
    for (i, form) in forms.iter().enumerate() {
        let name = format!("form{i}");
        let built = Command::new("g++").args(*form).arg("-o").arg(at(&name)).arg(at("a.cc")).output();
        if !built.expect("g++").status.success() {
            println!("not built: {form:?}");
            continue;
        }
        let out = align(&at(&name), &at("copy"), &ALL);
        assert!(out.status.success(), "{form:?}: {out:?}");
        let bare = Cmd::new([&at(&name)]).bare();
        assert_eq!(bare.stdout, "too large 1234 5 9\n", "{form:?}");
        assert_eq!(Cmd::new([&at("copy")]).bare(), bare, "{form:?}");
        done += 1;
        if form.contains(&"-s") || form.contains(&"-static-pie") {
            continue;
        }
        let commands = ["-nx", "-batch", "-ex", "break inner", "-ex", "run", "-ex", "bt"];
        let shown = must(Command::new(find("gdb").expect("needed above")).args(commands).arg(at("copy")));
        let frames = ["inner(int)", "outer(int)", "main ("].map(|name| shown.find(name));
        assert!(frames.iter().all(Option::is_some) && frames.is_sorted(), "{form:?}: {shown}");
    }
    assert!(done >= 4, "only {done} forms were built");
}

const SOURCE: &str = r#"
#include <cstdio>
#include <stdexcept>
#include <string>
thread_local int local = 5;
struct Made { int value; Made(int n) : value(n) {} } made(1234);
__attribute__((noinline)) int inner(int n) {
    switch (n) {
    case 0: return 3; case 1: return local; case 2: return 9; case 3: return 4;
    case 4: return made.value; case 5: return 8; case 6: return 2;
    }
    throw std::runtime_error("too large");
}
__attribute__((noinline)) int outer(int n) { int r = inner(n); asm volatile("" : "+r"(r)); return r; }
int main(int argc, char **) {
    std::string what;
    try { outer(98 + argc); } catch (std::exception &e) { what = e.what(); }
    int a = outer(3 + argc), b = outer(argc), c = outer(1 + argc);
    std::printf("%s %d %d %d\n", what.c_str(), a, b, c);
}
"#;
