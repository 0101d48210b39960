// SPDX-License-Identifier: Apache-2.0
//! Shows how soon the code of programs that run long is huge: under `hugelift run`, which copies while they run, beside
//! `run --eager`, which copies at their start. Each program computes without end and is killed.

use crate::copy::find_clang;
use crate::{Options, hugelift};
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use hugelift_measure::timed::Seen;
use hugelift_os::proc::clock::cpu_time;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a program may take until its code is huge.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a program that was lifted at its start runs until it is looked at: it may open objects meanwhile.
const SETTLED: Duration = Duration::from_secs(2);
/// Between two looks at a program.
const PAUSE: Duration = Duration::from_millis(20);
/// Functions in the generated source files: a compiler takes minutes for them.
const FUNCTIONS: usize = 60_000;

/// The programs: the command that each needs, and how it is made in a folder for what it needs.
pub type Make = fn(&Path) -> Result<Vec<OsString>>;
pub const CASES: [(&str, Make); 13] = [
    ("node", |_| Ok(words(&["node", "-e", "for (let i = 0; ; i++) JSON.parse(JSON.stringify({ i }))"]))),
    ("clang++", |dir| clang(dir)),
    ("rustc", |dir| rustc(dir)),
    ("javac", |dir| java(dir)),
    ("gcc", |dir| cc1(dir)),
    ("php", |_| Ok(words(&["php", "-r", "for ($i = 0; ; $i++) md5(serialize([$i, strrev(\"$i\")]));"]))),
    ("python3", |_| {
        Ok(words(&[
            "/usr/bin/python3",
            "-c",
            "import json\nwhile True: json.loads(json.dumps({'a': [1, 'b']}))",
        ]))
    }),
    ("gdb", |_| {
        Ok(words(&["gdb", "-nx", "-batch", "-ex", "python while True: gdb.parse_and_eval('1+2*3')"]))
    }),
    ("perl", |_| {
        Ok(words(&["perl", "-e", "for (my $i = 0; ; $i++) { my $s = \"$i\"; $s =~ s/(\\d)/<$1>/g }"]))
    }),
    ("git", |_| shell("yes HEAD | exec git cat-file --batch-check")),
    ("openssl", |_| Ok(words(&["openssl", "speed", "-seconds", "300", "rsa2048"]))),
    ("cmake", |dir| cmake(dir)),
    ("go", |dir| go(dir)),
];

/// Prints for each program the MB of text and read-only data on huge pages in both ways, and the CPU time that it had
/// used when all were huge that an eager lift makes huge.
///
/// # Errors
/// A program cannot be started, or ends.
pub fn run(options: &Options) -> Result<()> {
    println!("\ncode and constants of programs that run long, in MB on huge pages by smaps");
    println!("  program      --eager   run   after s of CPU time   the same with the copies in the store");
    for (needs, make) in options.chosen(&CASES)? {
        let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
        row(needs, &make(dir.path())?)?;
    }
    Ok(())
}

fn row(name: &str, argv: &[OsString]) -> Result<()> {
    let store = TempDir::new_in("/dev/shm").context("no tmpfs on /dev/shm")?;
    let eager = eager(argv, store.path().join("eager"))?;
    let place = store.path().join("late");
    let first = late(argv, &place, eager)?;
    let second = late(argv, &place, eager)?;
    let mb = |bytes: u64| bytes >> 20;
    let after = |at: Option<Duration>| at.map_or("not".into(), |at| format!("{:.1}", at.as_secs_f64()));
    println!(
        "  {name:<12} {:>7} {:>5}   {:>19}   {:>37}",
        mb(eager),
        mb(first.huge),
        after(first.after),
        format!("{}, {}", mb(second.huge), after(second.after))
    );
    Ok(())
}

/// What became huge in a program.
struct Late {
    huge: u64,
    /// The CPU time after which all was huge that was expected; `None` if that did not happen in time.
    after: Option<Duration>,
}

/// Returns the bytes that are huge after a lift at the start.
fn eager(argv: &[OsString], store: PathBuf) -> Result<u64> {
    let child = start(argv, &["--eager"], &store)?;
    std::thread::sleep(SETTLED);
    ensure!(!child.has_ended()?, "{argv:?} ended within {SETTLED:?}");
    Ok(huge(child.pid()))
}

/// Waits until as much is huge in a program that is lifted while it runs.
fn late(argv: &[OsString], store: &Path, expected: u64) -> Result<Late> {
    let child = start(argv, &[], store)?;
    let began = Instant::now();
    loop {
        interrupt::check()?;
        std::thread::sleep(PAUSE);
        let cpu = cpu_time(child.pid()).unwrap_or_default();
        let huge = huge(child.pid());
        let is_over = began.elapsed() > PATIENCE || child.has_ended()?;
        // A program that has just been started is not the program yet.
        if huge >= expected && began.elapsed() > SETTLED / 4 || is_over {
            return Ok(Late { huge, after: (huge >= expected).then_some(cpu) });
        }
    }
}

fn start(argv: &[OsString], options: &[&str], store: &Path) -> Result<Child> {
    let mut program =
        Program::new(argv.iter().cloned()).lifted(&hugelift()?, &[&["--quiet"], options].concat());
    program.env.push(("HUGELIFT_STORE".into(), store.into()));
    Child::start(&mut program.command()?)
}

/// Returns the bytes of text and read-only data that are huge; none while the process is being lifted.
fn huge(pid: u32) -> u64 {
    Seen::now(pid).memory.map_or(0, |memory| memory.lifted())
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Returns a shell that becomes the program.
fn shell(text: &str) -> Result<Vec<OsString>> {
    Ok(words(&["sh", "-c", text]))
}

fn clang(dir: &Path) -> Result<Vec<OsString>> {
    let clang = find_clang().context("no clang++ in PATH")?;
    let source = c_source(dir, "many.cpp")?;
    let mut argv: Vec<OsString> = vec![clang.into(), "-O2".into(), "-c".into()];
    argv.extend([source.into(), "-o".into(), "/dev/null".into()]);
    Ok(argv)
}

/// gcc's compiler itself: the command gcc only waits for it.
fn cc1(dir: &Path) -> Result<Vec<OsString>> {
    let out = Command::new("gcc").arg("-print-prog-name=cc1").output().context("gcc")?;
    let path = String::from_utf8(out.stdout).context("the path of cc1")?;
    let source = c_source(dir, "many.c")?;
    Ok(vec![
        path.trim().into(),
        "-quiet".into(),
        "-O2".into(),
        source.into(),
        "-o".into(),
        "/dev/null".into(),
    ])
}

fn c_source(dir: &Path, name: &str) -> Result<PathBuf> {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        writeln!(
            text,
            "int f{n}(int *a, int b) {{ int s = {n}; for (int i = 0; i < b; i++) s += a[i] * {n} ^ s; return s; }}"
        )?;
    }
    let path = dir.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

fn rustc(dir: &Path) -> Result<Vec<OsString>> {
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        writeln!(
            text,
            "pub fn f{n}(a: &[u32]) -> u32 {{ a.iter().fold({n}, |s, x| s.wrapping_add(x * {n}) ^ s) }}"
        )?;
    }
    let path = dir.join("many.rs");
    fs::write(&path, text)?;
    let mut argv = words(&["rustc", "--crate-type", "lib", "-O", "--emit", "obj", "-o", "/dev/null"]);
    argv.push(path.into());
    Ok(argv)
}

fn java(dir: &Path) -> Result<Vec<OsString>> {
    let source = "class Late { public static void main(String[] a) { \
        for (long s = 0; s >= 0; s += new int[1000].length) {} } }";
    let path = dir.join("Late.java");
    fs::write(&path, source)?;
    let out = Command::new("javac").arg("-d").arg(dir).arg(&path).output().context("javac")?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut argv = words(&["java", "-Xmx64m", "-XX:+UseSerialGC", "-cp"]);
    argv.extend([dir.into(), "Late".into()]);
    Ok(argv)
}

fn cmake(dir: &Path) -> Result<Vec<OsString>> {
    let path = dir.join("late.cmake");
    fs::write(&path, "while(TRUE)\n  string(SHA1 x \"a${x}\")\nendwhile()\n")?;
    Ok(vec!["cmake".into(), "-P".into(), path.into()])
}

fn go(dir: &Path) -> Result<Vec<OsString>> {
    let (source, path) = (dir.join("late.go"), dir.join("late"));
    let text = "package main\nimport (\"fmt\"; \"net/http\")\nvar server http.Server\n\
        func main() { for i := 0; ; i++ { _ = fmt.Sprint(i, server.Addr) } }\n";
    fs::write(&source, text)?;
    let mut build = Command::new("go");
    let build = build.arg("build").arg("-o").arg(&path).arg(&source).env("GO111MODULE", "off");
    let out = build.output().context("go build")?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(vec![path.into()])
}
