// SPDX-License-Identifier: Apache-2.0
//! Compares the protection of each page of a program in `/proc/PID/maps`, bare and with all parts
//! lifted, also with `--span outer`. It is the same, also for RELRO and guard pages, and nothing is
//! writable and executable at once. Without ASLR everything has the same address in both; only a
//! position-independent executable is moved, as a whole.

use crate::common::build::must;
use crate::common::huge::smaps;
use crate::common::run::PATIENCE;
use crate::common::{Cmd, Held, fat, find, plain};
use crate::need;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::Headers;
use hugelift_core::maps::{Mapping, Prot};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIFTS: [&[&str]; 2] = [
    // `--malloc off`, because the settings of malloc change the size of the heap.
    &["--parts", "all", "--backing", "thp", "--malloc", "off"],
    &["--parts", "all", "--backing", "thp", "--malloc", "off", "--span", "outer"],
];

fn mappings(held: &Held) -> Vec<Mapping> {
    smaps(held.pid()).into_iter().map(|u| u.mapping).collect()
}

fn is_of_object(m: &Mapping) -> bool {
    m.path.is_absolute() && !m.path.starts_with("/dev")
}

/// Returns the protection of each stretch of `range`. Neighbours with the same protection are joined,
/// because a lift cuts mappings. `None`: not mapped.
fn allowed(all: &[Mapping], range: Range) -> Vec<(Range, Option<Prot>)> {
    let mut out: Vec<(Range, Option<Prot>)> = Vec::new();
    let mut add = |piece: Range, prot| match out.last_mut() {
        _ if piece.is_empty() => {}
        Some((last, p)) if *p == prot && last.end == piece.start => last.end = piece.end,
        _ => out.push((piece, prot)),
    };
    let mut at = range.start;
    for m in all {
        if let Some(inside) = m.range.intersect(range) {
            add(Range { start: at, end: inside.start }, None);
            add(inside, Some(m.prot));
            at = inside.end;
        }
    }
    add(Range { start: at, end: range.end }, None);
    out
}

/// Returns the stretches of each mapped object that the loader makes read-only after relocation.
fn relro(all: &[Mapping]) -> Vec<(PathBuf, Range)> {
    let first = all.iter().filter(|m| is_of_object(m) && m.offset == 0);
    let of = |m: &Mapping| {
        let headers = Headers::parse(&std::fs::read(&m.path).ok()?).ok()?;
        let relro = headers.relro?;
        let start = m.range.start.0.wrapping_sub(headers.first_page(4096)).wrapping_add(relro.vaddr);
        let whole = Range::sized(Addr(start), relro.size)?;
        let page = PageSize::SMALL;
        let range = Range::new(whole.start.align_down(page), whole.end.align_down(page))?;
        Some((m.path.clone(), range)).filter(|(_, range)| !range.is_empty())
    };
    first.filter_map(of).collect()
}

/// Returns the sizes of the small anonymous mappings without any access: guards, for example of
/// threads' stacks.
fn guards(all: &[Mapping]) -> Vec<u64> {
    let is_guard = |m: &&Mapping| m.prot == Prot::NONE && !m.is_file() && m.range.len() <= 64 << 10;
    let mut sizes: Vec<u64> = all.iter().filter(is_guard).map(|m| m.range.len()).collect();
    sizes.sort_unstable();
    sizes
}

/// Returns the mappings of a process and its number of threads.
fn look(held: &Held) -> (Vec<Mapping>, usize) {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", held.pid()));
    (mappings(held), tasks.expect("the process is there").count())
}

/// Returns where the program headers of the executable are (`AT_PHDR`, getauxval(3)).
fn program_headers(held: &Held) -> u64 {
    let auxv = std::fs::read(format!("/proc/{}/auxv", held.pid())).expect("read auxv");
    let words = auxv.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().expect("eight bytes")));
    let words: Vec<u64> = words.collect();
    words.chunks_exact(2).find(|pair| pair[0] == 3).expect("AT_PHDR")[1]
}

/// Returns `after` with the executable moved back to its address in `before`: a position-independent
/// executable is moved as a whole.
fn moved_back(before: &[Mapping], mut after: Vec<Mapping>, distance: u64, program: &Path) -> Vec<Mapping> {
    let own = || before.iter().filter(|m| m.path == program).map(|m| m.range);
    let (Some(start), Some(end)) = (own().map(|r| r.start).min(), own().map(|r| r.end).max()) else {
        return after;
    };
    // Its zeros follow without a gap.
    let is_unnamed = |m: &Mapping| m.path.as_os_str().is_empty();
    let end = before
        .iter()
        .fold(end, |end, m| if m.range.start == end && is_unnamed(m) { m.range.end } else { end });
    if distance == 0 {
        return after;
    }
    let image = Range { start, end }.down(distance);
    for m in after.iter_mut().filter(|m| m.range.intersect(image).is_some()) {
        m.range = Range { start: Addr(m.range.start.0 + distance), end: Addr(m.range.end.0 + distance) };
    }
    // The heap moves along and begins with a page of its own. Here it would overlap the image, so
    // it is put elsewhere, with the guard that musl puts into it.
    for m in after.iter_mut().filter(|m| m.is_named("[heap]")) {
        m.range = Range { start: Addr(m.range.start.0 + (1 << 40)), end: Addr(m.range.end.0 + (1 << 40)) };
    }
    after.sort_by_key(|m| m.range.start);
    after
}

/// Returns the first mapping of an object in `before` whose protection has changed.
fn changed<'a>(before: &'a [Mapping], after: &[Mapping]) -> Option<&'a Mapping> {
    let is_same = |m: &Mapping| allowed(after, m.range) == [(m.range, Some(m.prot))];
    before.iter().find(|m| is_of_object(m) && !is_same(m))
}

/// Looks at both when they have reached the same point: a program may still protect its own pages
/// and start threads long after it first waits (mariadbd does both).
fn both(bare: &Held, lifted: &Held, program: &Path) -> [(Vec<Mapping>, usize); 2] {
    let program = program.canonicalize().expect("the program is there");
    let distance = program_headers(bare) - program_headers(lifted);
    let deadline = Instant::now() + PATIENCE / 3;
    loop {
        let (before, after) = (look(bare), look(lifted));
        let after = (moved_back(&before.0, after.0, distance, &program), after.1);
        let is_same = changed(&before.0, &after.0).is_none() && before.1 == after.1;
        if is_same || Instant::now() > deadline {
            return [before, after];
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Compares `cmd`, which waits for its stdin as `program`, bare and lifted.
fn unchanged(cmd: &Cmd, program: &Path) {
    unchanged_each(&|| cmd.clone(), program);
}

/// Like [`unchanged`], but makes a new command for each start.
fn unchanged_each(make: &dyn Fn() -> Cmd, program: &Path) {
    let make = || make().under(["setarch", "-R"]);
    let bare = Held::start(&make(), None, program);
    for lift in LIFTS {
        let cmd = &make();
        let lifted = Held::start(cmd, Some(lift), program);
        let [(before, threads), (after, threads_now)] = both(&bare, &lifted, program);
        if let Some(m) = changed(&before, &after) {
            panic!("{cmd:?} {lift:?}: {m:?} became {:?}", allowed(&after, m.range));
        }
        let compared = before.iter().filter(|m| is_of_object(m)).count();
        assert!(compared >= 3, "{cmd:?}: {before:#?}");
        assert!(!after.iter().any(|m| m.prot.is_wx()), "{cmd:?} {lift:?}: writable and executable");
        // (A static program protects less of its RELRO than its headers say.)
        let relro = relro(&before);
        for (path, range) in &relro {
            let (was, now) = (allowed(&before, *range), allowed(&after, *range));
            assert_eq!(now, was, "{cmd:?} {lift:?}: RELRO of {}", path.display());
        }
        let is_protected = |range: Range| allowed(&before, range) == [(range, Some(Prot::R))];
        let shared = relro.iter().filter(|(path, _)| path.to_string_lossy().contains(".so"));
        assert!(shared.into_iter().all(|(_, range)| is_protected(*range)), "{cmd:?}: {relro:?}");
        // Guards come and go with threads: each thread except the first has one.
        let (had, has) = (guards(&before), guards(&after));
        let lacks = if threads_now == threads { has != had } else { has.len() + 1 < threads_now };
        assert!(!lacks, "{cmd:?} {lift:?}: guards {had:?} became {has:?}, threads {threads}, {threads_now}");
        // New executable memory lies in the same huge page as code.
        for m in after.iter().filter(|m| m.prot.exec && !m.is_file() && !m.is_named("[vdso]")) {
            let own = |b: &&Mapping| b.prot.exec && !b.is_named("[vsyscall]");
            let whole = before.iter().filter(own).filter_map(|b| {
                let huge = PageSize::MB2;
                Range::new(b.range.start.align_down(huge), b.range.end.align_up(huge)?)
            });
            assert!(
                m.is_named("[vsyscall]") || whole.into_iter().any(|w| w.covers(m.range)),
                "{cmd:?}: {m:?}"
            );
        }
    }
}

#[test]
fn of_small_programs_of_each_kind() {
    need!("setarch");
    let apart = ["-no-pie", "-Wl,-z,max-page-size=0x200000"];
    let kinds = [&["-pie", "-fPIE"][..], &["-no-pie"], &["-static"], &["-static-pie"], &apart];
    for flags in kinds {
        for victim in [fat("hold").flags(flags), plain("writes").flags(flags).flags(&["-DNO_FORK"])] {
            let program = victim.build();
            unchanged(&Cmd::new([&program]), &program);
        }
    }
    if find("x86_64-linux-musl-gcc").is_some() {
        for flags in [&[][..], &["-static"]] {
            let program = fat("hold").compiler("x86_64-linux-musl-gcc").flags(flags).build();
            unchanged(&Cmd::new([&program]), &program);
        }
    }
}

#[test]
fn of_shared_objects() {
    need!("setarch");
    let part = |n: u32| fat("part").size(4 << 20).library().flags(&[&format!("-DPART={n}")]).build();
    let program = (1..=5).fold(plain("parts"), |victim, n| victim.with(part(n))).build();
    unchanged(&Cmd::new([&program]), &program);
}

#[test]
fn of_real_programs() {
    need!("setarch", "gdb", "perl", "node", "clang-19", "python3", "redis-server");
    // python3 may be a wrapper script, so this asks for the executable.
    let python = must(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
    let stdin_reader = "process.stdin.on('data', () => {}); process.stdin.on('end', () => {})";
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let socket = dir.path().join("socket").display().to_string();
    let programs: [&[&str]; 6] = [
        &["gdb", "-nx", "-q"],
        &["perl", "-e", "my @a = (1) x 100000; <STDIN>"],
        &["clang-19", "-x", "c", "-fintegrated-cc1", "-fsyntax-only", "-"],
        &["node", "--jitless", "-e", stdin_reader],
        &[python.trim(), "-c", "import sys; sys.stdin.read()"],
        &["redis-server", "--port", "0", "--save", "", "--unixsocket", &socket],
    ];
    for words in programs {
        let program = find(words[0]).unwrap_or_else(|| PathBuf::from(words[0]));
        let cmd = Cmd::new([program.as_os_str()]).args(&words[1..]);
        unchanged(&cmd, &program);
    }
}

#[test]
fn of_go_and_rust() {
    need!("setarch", "go", "rustc");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "package main\nimport (\"bufio\"; \"fmt\"; \"net/http\"; \"os\")\n\
        func main() { fmt.Println(http.StatusText(200)); bufio.NewReader(os.Stdin).ReadString('\\n') }\n";
    std::fs::write(dir.path().join("main.go"), source).expect("write the source");
    must(Command::new("go").current_dir(&dir).args(["build", "-o", "main", "main.go"]));
    let program = dir.path().join("main");
    unchanged(&Cmd::new([&program]), &program);
    let sysroot = must(Command::new("rustc").args(["--print", "sysroot"]));
    let rustc = Path::new(sysroot.trim()).join("bin/rustc");
    unchanged(&Cmd::new([&rustc]).arg("-"), &rustc);
}

#[test]
fn of_mariadbd() {
    need!("setarch", "mariadbd");
    let user = if nix::unistd::geteuid().is_root() { "--user=root" } else { "--silent-startup" };
    let program = find("mariadbd").expect("needed above").canonicalize().expect("it is there");
    let dirs: RefCell<Vec<tempfile::TempDir>> = RefCell::default();
    // A killed mariadbd leaves a directory that the next one cannot use.
    let start = || {
        let dir = crate::common::open_dir(&[]);
        let data = format!("--datadir={}", dir.path().display());
        let log = format!("--log-error={}/log", dir.path().display());
        dirs.borrow_mut().push(dir);
        let words = ["--no-defaults", "--bootstrap", "--skip-networking", &data, &log, user];
        Cmd::new([program.as_os_str()]).args(words)
    };
    unchanged_each(&start, &program);
}
