// SPDX-License-Identifier: Apache-2.0
//! Programs that work on for as long as they are measured, with much private memory or with little.

use crate::hashes::{self, Work};
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long its memory must stay the same before a program is asked about.
const CALM: Duration = Duration::from_secs(1);
/// How long it may take until then.
const PATIENCE: Duration = Duration::from_secs(60);
/// A growth of less than one in so many counts as none.
const GROWTH: u64 = 100;

const FEW: Work = Work::endless(1000);
const HEAP: [&str; 3] = ["-Xms1g", "-Xmx1g", "-XX:+UseSerialGC"];
const SMALL_HEAP: [&str; 3] = ["-Xms16m", "-Xmx16m", "-XX:+UseSerialGC"];

/// Memory that is full and of which nothing is read again.
const IDLE: &str = "import sys\nidle = b'x' * (256 << 20)\nh = {i: i for i in range(1000)}\nwhile True:\n \
    s = sum(h.get(i, 0) for i in range(1000))\n print(s, flush=True)";
const SQLITE: &str = "import sqlite3\nn = 1000003\nd = sqlite3.connect(':memory:')\n\
    d.execute('create table t(a integer primary key, b text)')\n\
    d.executemany('insert into t values(?, ?)', ((i, 'value of row %d' % i * 3) for i in range(n)))\ni = s = 0\nwhile True:\n \
    for j in range(100):\n  i += 104729\n  s += len(d.execute('select b from t where a = ?', (i % n,)).fetchone()[0])\n \
    print(s, flush=True)";
/// Each turn writes a line, so that there is a measure of its work.
const SHELL: &str =
    "i=0; while :; do i=$(((i + 7919) % 40009)); case $i in *7) s=seven;; *) s=x$i;; esac; echo $s; done";

/// A program to ask about.
pub struct Workload {
    /// Its name in the table.
    pub name: &'static str,
    /// Makes it, in a folder for what it needs; fails if the machine lacks something.
    make: fn(&Path) -> Result<Program>,
    /// For a server: what fills it and what then asks it for as long as it runs.
    load: Option<fn(&Path) -> [Program; 2]>,
}

const fn alone(name: &'static str, make: fn(&Path) -> Result<Program>) -> Workload {
    Workload { name, make, load: None }
}

/// All of them, those with little in use last.
pub const WORKLOADS: [Workload; 18] = [
    alone("python3, a dict of 2.5 M", |_| Ok(hashes::python(Work::endless(2_500_000)))),
    alone("perl, a hash of 1.5 M", |_| Ok(hashes::perl(Work::endless(1_500_000)))),
    alone("php, an array of 2.5 M", |_| Ok(hashes::php(Work::endless(2_500_000)))),
    alone("mawk, an array of 1.5 M", |_| Ok(hashes::mawk(Work::endless(1_500_000)))),
    alone("Go, a map of 5 M", |dir| hashes::go(dir, Work::endless(5_000_000))),
    alone("Go, a map of 500 k", |dir| hashes::go(dir, Work::endless(500_000))),
    alone("Go, a map of 100 k", |dir| hashes::go(dir, Work::endless(100_000))),
    alone("JVM, a HashMap of 3 M", |dir| hashes::java(dir, &HEAP, Work::endless(3_000_000))),
    alone("node, a Map of 2 M", |_| Ok(hashes::node(Work::endless(2_000_000)))),
    Workload { name: "redis, gets of 1.5 M", make: redis, load: Some(redis_load) },
    alone("SQLite, a table of 1 M in memory", |_| Ok(Program::new(["python3", "-c", SQLITE]))),
    alone("python3, 256 MB not used again", |_| Ok(Program::new(["python3", "-c", IDLE]))),
    alone("JVM, a HashMap of 1000", |dir| hashes::java(dir, &SMALL_HEAP, FEW)),
    alone("node, a Map of 1000", |_| Ok(hashes::node(FEW))),
    alone("python3, a dict of 1000", |_| Ok(hashes::python(FEW))),
    alone("sort, a buffer of 4 MB", sort),
    alone("gzip -6", |_| {
        Ok(Program { input: Some("/dev/urandom".into()), ..Program::new(["gzip", "-6", "-c"]) })
    }),
    alone("sh, a loop", |_| Ok(Program::new(["sh", "-c", SHELL]))),
];

/// A program that does its usual work, with its load. Both are killed when this is dropped.
pub struct Running {
    // The load first: it must not see its server end.
    _load: Option<Child>,
    program: Child,
}

impl Running {
    /// Returns the process to ask about.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }
}

impl Workload {
    /// Starts it, with its load, and returns when its memory does not grow any more.
    ///
    /// # Errors
    /// The machine lacks something, or the program ended or grows on.
    pub fn start(&self, dir: &Path) -> Result<Running> {
        let program = Child::start(&mut (self.make)(dir)?.command()?)?;
        let Some(load) = self.load else {
            settled(&program)?;
            return Ok(Running { _load: None, program });
        };
        let [fill, ask] = load(dir);
        settled(&program)?;
        fill.run().context("filling it")?;
        let load = Child::start(&mut ask.command()?)?;
        settled(&program)?;
        Ok(Running { _load: Some(load), program })
    }
}

/// Waits until the memory of a program has stayed the same for a while.
fn settled(program: &Child) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut before = 0;
    loop {
        std::thread::sleep(CALM);
        interrupt::check()?;
        ensure!(!program.has_ended()?, "it has ended");
        let now = resident(program.pid())?;
        if now.abs_diff(before) <= before / GROWTH {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "its memory still changes after {PATIENCE:?}");
        before = now;
    }
}

/// Returns the pages of a process in memory (proc(5), /proc/PID/statm).
fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/statm");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).context(path)
}

/// Returns sort of lines that do not end: it sorts its buffer, writes that, and fills it again.
fn sort(dir: &Path) -> Result<Program> {
    let words = ["sort", "--parallel=1", "-S", "4M", "-T"].map(OsString::from);
    let program = Program::new(words.into_iter().chain([dir.into()]));
    let (env, input) = (vec![("LC_ALL".into(), "C".into())], Some("/dev/urandom".into()));
    Ok(Program { env, input, ..program })
}

/// Returns redis, which may use huge pages: by default it forbids them to itself.
fn redis(dir: &Path) -> Result<Program> {
    let words = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--disable-thp", "no"];
    let more = [OsString::from("--unixsocket"), dir.join("socket").into(), "--dir".into(), dir.into()];
    Ok(Program::new(words.map(OsString::from).into_iter().chain(more)))
}

fn redis_load(dir: &Path) -> [Program; 2] {
    let of = |words: &[&str]| {
        let all = [OsString::from("redis-benchmark"), "-s".into(), dir.join("socket").into()];
        let words = ["-q", "-r", "1500000"].iter().chain(words).map(OsString::from);
        Program::new(all.into_iter().chain(words))
    };
    [of(&["-t", "set", "-n", "3000000", "-P", "64"]), of(&["-t", "get", "-n", "1000000000", "-P", "4"])]
}
