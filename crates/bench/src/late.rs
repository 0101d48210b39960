// SPDX-License-Identifier: Apache-2.0
//! Shows how soon the code of programs that run long is huge: under `hugelift run`, which copies while they run, beside
//! `run --eager`, which copies at their start. Each program computes without end and is killed.

use crate::databases::{mariadb, postgres};
use crate::options::Options;
use crate::programs::{find_clang, hugelift};
use anyhow::{Context as _, Result, ensure};
use hugelift_linux::proc::clock::cpu_time;
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use hugelift_measure::timed::Seen;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a program may take until its code is huge.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a program that was lifted at its start runs until it is examined: it may open objects meanwhile.
const SETTLED: Duration = Duration::from_secs(2);
/// The pause between two checks of a program.
const PAUSE: Duration = Duration::from_millis(20);
/// Functions in the generated source files: a compiler takes minutes for them.
const FUNCTIONS: usize = 60_000;

/// Makes the words of a program, in a folder for what it needs.
pub type Make = fn(&Path) -> Result<Vec<OsString>>;

/// The programs that are measured, each with the command that it needs.
pub const CASES: [(&str, Make); 11] = [
    ("node", |_| Ok(words(&["node", "-e", NODE]))),
    ("clang++", clang),
    ("rustc", rustc),
    ("javac", java),
    ("gcc", cc1),
    ("php", |_| Ok(words(&["php", "-r", PHP]))),
    ("/usr/bin/python3", |_| Ok(words(&["/usr/bin/python3", "-c", NUMPY]))),
    ("gdb", |_| Ok(words(&["gdb", "-nx", "-batch", "-ex", GDB]))),
    ("cmake", cmake),
    ("mariadbd", mariadb),
    ("postgres", postgres),
];

const NODE: &str = "for (let i = 0; ; i++) JSON.parse(JSON.stringify({ i }))";
const PHP: &str = "for ($i = 0; ; $i++) md5(serialize([$i, strrev(\"$i\")]));";
const NUMPY: &str = "import numpy as np\na = np.eye(100) * 3\nwhile True: np.linalg.svd(a)";
const GDB: &str = "python while True: gdb.parse_and_eval('1+2*3')";
const JAVA: &str = "class Late { public static void main(String[] a) { \
    for (long s = 0; s >= 0; s += new int[1000].length) {} } }";
const CMAKE: &str =
    "cmake_minimum_required(VERSION 3.5)\nwhile(TRUE)\n  string(SHA1 x \"a${x}\")\nendwhile()\n";

/// Prints for each program the MB of text and read-only data on huge pages: all that attach can lift, what `--eager`
/// lifts at the start, and what `run` has lifted, with the CPU time that the program had used by then.
///
/// # Errors
/// A program cannot be started, or ends too soon.
pub fn run(options: &Options) -> Result<()> {
    println!("\ncode and constants of programs that run long, in MB on huge pages by smaps");
    println!("  program              all  --eager  run, after s of CPU time  with the copies in the store");
    for (needs, make) in options.chosen(&CASES)? {
        // In a folder that other users reach: PostgreSQL runs as one.
        let dir = tempfile::tempdir()?;
        row(needs, &make(dir.path())?)?;
    }
    Ok(())
}

fn row(name: &str, argv: &[OsString]) -> Result<()> {
    let store = TempDir::new_in("/dev/shm").context("no tmpfs on /dev/shm")?;
    let all = attached(argv)?;
    let eager = eager(argv, store.path().join("eager"))?;
    let place = store.path().join("late");
    let [first, second] = [late(argv, &place, all)?, late(argv, &place, all)?];
    println!("  {name:<17} {:>6} {:>8}  {first:<24}  {second}", all >> 20, eager >> 20);
    Ok(())
}

/// What became huge in a program.
struct Late {
    huge: u64,
    /// The CPU time until all expected pages were huge; `None` if that did not happen in time.
    after: Option<Duration>,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.after.map_or("not all in time".into(), |at| format!("{:.1}", at.as_secs_f64()));
        f.pad(&format!("{}, {after}", self.huge >> 20))
    }
}

/// Returns the bytes that are huge after all was lifted that the program has mapped after a while.
fn attached(argv: &[OsString]) -> Result<u64> {
    let child = Child::start(&mut Program::new(argv.iter().cloned()).command()?)?;
    settle(&child, argv)?;
    let mut attach = Command::new(hugelift()?);
    attach.args(["attach", "--whole", "--backing", "thp"]).arg(child.pid().to_string());
    let out = attach.output().context("hugelift attach")?;
    ensure!(out.status.success(), "hugelift attach: {}", String::from_utf8_lossy(&out.stderr));
    Ok(huge(child.pid()))
}

/// Returns the bytes that are huge after a lift at the start.
fn eager(argv: &[OsString], store: PathBuf) -> Result<u64> {
    let child = start(argv, &["--eager"], &store)?;
    settle(&child, argv)?;
    Ok(huge(child.pid()))
}

fn settle(child: &Child, argv: &[OsString]) -> Result<()> {
    std::thread::sleep(SETTLED);
    ensure!(!child.has_ended()?, "{argv:?} ended within {SETTLED:?}");
    Ok(())
}

/// Waits until as much is huge in a program that is lifted while it runs.
fn late(argv: &[OsString], store: &Path, expected: u64) -> Result<Late> {
    let child = start(argv, &["--whole"], store)?;
    let began = Instant::now();
    loop {
        interrupt::check()?;
        std::thread::sleep(PAUSE);
        let cpu = cpu_time(child.pid()).unwrap_or_default();
        let huge = huge(child.pid());
        if huge >= expected || began.elapsed() > PATIENCE || child.has_ended()? {
            return Ok(Late { huge, after: (huge >= expected).then_some(cpu) });
        }
    }
}

/// Starts a program under `hugelift run` with these options.
///
/// # Errors
/// It cannot be started.
pub fn start(argv: &[OsString], options: &[&str], store: &Path) -> Result<Child> {
    let mut program =
        Program::new(argv.iter().cloned()).lifted(&hugelift()?, &[&["--quiet"], options].concat());
    program.env.push(("HUGELIFT_STORE".into(), store.into()));
    Child::start(&mut program.command()?)
}

/// Returns the bytes of text and read-only data that are huge; none while the process is being lifted.
pub fn huge(pid: u32) -> u64 {
    Seen::now(pid).memory.map_or(0, |memory| memory.lifted())
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
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
    // The compiler itself: the rustc in PATH may be that of rustup, which only starts it.
    let out = Command::new("rustc").args(["--print", "sysroot"]).output().context("rustc")?;
    let sysroot = String::from_utf8(out.stdout).context("rustc's folder")?;
    let mut argv = vec![Path::new(sysroot.trim()).join("bin/rustc").into()];
    argv.extend(words(&["--crate-type", "lib", "-O", "--emit", "obj", "-o"]));
    // Not /dev/null: rustc removes what is there before it writes, which root may.
    argv.extend([dir.join("many.o").into(), path.into()]);
    Ok(argv)
}

fn java(dir: &Path) -> Result<Vec<OsString>> {
    let path = dir.join("Late.java");
    fs::write(&path, JAVA)?;
    let out = Command::new("javac").arg("-d").arg(dir).arg(&path).output().context("javac")?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut argv = words(&["java", "-Xmx64m", "-XX:+UseSerialGC", "-cp"]);
    argv.extend([dir.into(), "Late".into()]);
    Ok(argv)
}

fn cmake(dir: &Path) -> Result<Vec<OsString>> {
    let path = dir.join("late.cmake");
    fs::write(&path, CMAKE)?;
    Ok(vec!["cmake".into(), "-P".into(), path.into()])
}
