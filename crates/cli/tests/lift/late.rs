// SPDX-License-Identifier: Apache-2.0
//! Shared objects that a program opens while it runs, by dlopen(3): the watcher of a run finds and lifts them.

use crate::common::build::must;
use crate::common::huge::pieces;
use crate::common::run::{NO_STORE, PATIENCE, end_group, wait};
use crate::common::{Cmd, End, HUGELIFT};
use crate::loads::servers::{Postgres, Server};
use crate::{need, need_root, skip};
use hugelift_linux::proc::procfs::Process;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A program under `hugelift run`, which works until its stdin ends. Killed when dropped.
struct Working {
    child: Child,
    _store: tempfile::TempDir,
}

impl Working {
    fn start(options: &[&str], words: &[&str], dir: &Path) -> Working {
        let store = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
        let cmd = Cmd::new([HUGELIFT, "run", "-v", "--whole"]).args(options).arg("--").args(words).cwd(dir);
        let cmd = cmd.env("HUGELIFT_STORE", store.path().join("store"));
        let mut command = cmd.command(None);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
        Working { child: child.unwrap_or_else(|e| panic!("{words:?}: {e}")), _store: store }
    }

    /// Waits until all whole huge pages of the object are huge in process `pid`, and prints the CPU time that it has
    /// used by then.
    fn huge(&mut self, pid: impl Fn() -> Option<u32>, is_object: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut seen: Option<PathBuf> = None;
        loop {
            assert!(self.child.try_wait().expect("wait").is_none(), "it ended before {seen:?} was huge");
            if let Some(pid) = pid() {
                seen = seen.or_else(|| path_of(pid, &is_object));
                let all =
                    seen.as_ref().map(|path| pieces(pid, std::slice::from_ref(path))).unwrap_or_default();
                let whole: u64 = all.iter().filter_map(|piece| piece.inner).map(|inner| inner.len()).sum();
                if whole > 0 && all.iter().map(|piece| piece.huge).sum::<u64>() == whole {
                    let cpu = hugelift_linux::proc::clock::cpu_time(pid).unwrap_or_default();
                    println!("{seen:?}: {} MB huge, after {cpu:?} of CPU time", whole >> 20);
                    return;
                }
                assert!(Instant::now() < until, "it stays small: {all:?}");
            }
            assert!(Instant::now() < until, "{seen:?}: no such process or object");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends its stdin, and returns how it ends.
    fn finish(mut self) -> Option<End> {
        drop(self.child.stdin.take());
        wait(&mut self.child, Instant::now() + PATIENCE)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// Returns the path of the object in a process, as its mappings have it.
fn path_of(pid: u32, is_object: &impl Fn(&str) -> bool) -> Option<PathBuf> {
    let all = Process::new(pid).maps().ok()?;
    all.into_iter()
        .map(|m| m.path)
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_object))
}

#[test]
fn the_library_of_the_jvm() {
    need!("java", "javac");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = "class Loop { public static void main(String[] a) { \
        for (long s = 0; s >= 0; s += new int[1000].length) {} } }";
    std::fs::write(dir.path().join("Loop.java"), source).expect("write");
    must(std::process::Command::new("javac").arg("Loop.java").current_dir(&dir));
    let mut java = Working::start(&[], &["java", "-Xmx64m", "-cp", ".", "Loop"], dir.path());
    let pid = java.child.id();
    java.huge(|| Some(pid), |name| name == "libjvm.so");
}

/// `--eager` leaves no watcher. So nothing says that a later object is lifted.
#[test]
fn what_a_start_says_of_the_library_of_the_jvm() {
    need!("java");
    for (option, word) in
        [("-v", "lifted while it runs"), ("--eager", "not lifted, as --eager leaves no process")]
    {
        let cmd = Cmd::new([HUGELIFT, "run", "-v", option, "--", "java", "-Xmx64m", "-version"]);
        let out = cmd.env("HUGELIFT_STORE", NO_STORE).bare();
        assert_eq!(out.end, End::Code(0), "{out:?}");
        let line =
            out.stderr.lines().find(|line| line.contains("libjvm.so")).unwrap_or_else(|| panic!("{out:?}"));
        assert!(line.contains(&format!("after its start: {word}")), "{line}");
    }
}

#[test]
fn a_module_of_php() {
    need!("php");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = "if (!extension_loaded('fileinfo')) exit(3); $i = new finfo(FILEINFO_MIME_TYPE); $n = 0; \
        stream_set_blocking(STDIN, false); \
        while (!feof(STDIN)) { fread(STDIN, 1); for ($k = 0; $k < 200; $k++) \
        $n += $i->buffer(random_bytes(64) . '<html>') !== ''; } exit($n > 0 ? 0 : 4);";
    let mut php = Working::start(&[], &["php", "-r", script], dir.path());
    let pid = php.child.id();
    let until = Instant::now() + PATIENCE;
    while path_of(pid, &|name| name == "fileinfo.so").is_none() {
        if Instant::now() > until || php.child.try_wait().expect("wait").is_some() {
            skip!("php has no fileinfo.so here");
        }
    }
    php.huge(|| Some(pid), |name| name == "fileinfo.so");
    assert_eq!(php.finish(), Some(End::Code(0)));
}

#[test]
fn the_libraries_of_numpy() {
    const PYTHON: &str = "/usr/bin/python3";
    let has = std::process::Command::new(PYTHON).args(["-c", "import numpy"]).output();
    if !has.is_ok_and(|out| out.status.success()) {
        skip!("needs numpy for {PYTHON}: ci/setup.sh test");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = "import numpy as np, select, sys\na = np.eye(100) * 3\nwrong = 0\n\
        while not select.select([sys.stdin], [], [], 0)[0]:\n\
        \x20   u, s, v = np.linalg.svd(a)\n    wrong += not np.allclose(s, 3)\n\
        sys.exit(5 if wrong else 0)";
    let mut python = Working::start(&[], &[PYTHON, "-c", script], dir.path());
    let pid = python.child.id();
    python.huge(|| Some(pid), |name| name.starts_with("liblapack.") || name.starts_with("libopenblas"));
    assert_eq!(python.finish(), Some(End::Code(0)));
}

/// A backend of PostgreSQL opens its compiler for the first query that is worth it.
#[test]
fn the_compiler_of_postgres() {
    need_root!();
    need!("setpriv");
    let Some(server) = Postgres::find() else { skip!("needs postgres") };
    if !server.bin.with_file_name("lib/llvmjit.so").exists() {
        skip!("this PostgreSQL has no llvmjit.so");
    }
    let home = server.template();
    let data = home.path().join("data");
    let words = server.words(&data);
    let words: Vec<&str> = words.iter().map(|word| word.to_str().expect("UTF-8")).collect();
    let options = ["--user", "65534:65534", "--children", "lift"];
    let mut postgres = Working::start(&options, &words, Path::new("/"));
    let until = Instant::now() + PATIENCE;
    while !server.is_ready(&data) {
        assert!(Instant::now() < until, "PostgreSQL does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    let query = "set jit_above_cost = 0; set max_parallel_workers_per_gather = 0; \
        select sum((x * 7 + 3) % 11) from generate_series(1, 300000) x;";
    // One session, with more queries than it can end: the backend must stay while its libraries earn their copy.
    let script = home.path().join("queries.sql");
    std::fs::write(&script, format!("{query}\n").repeat(100_000)).expect("write the queries");
    let mut client = server.tool("psql", &data);
    client.args(["-q", "-o", "/dev/null", "postgres"]);
    let mut client = client.stdin(std::fs::File::open(&script).expect("the queries")).spawn().expect("psql");
    let compiles = |pid: &u32| {
        let is_ours = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data);
        is_ours && path_of(*pid, &|name| name == "llvmjit.so").is_some()
    };
    let backend = || Process::all().ok()?.into_iter().find(compiles);
    postgres.huge(backend, |name| name.starts_with("libLLVM"));
    client.kill().expect("kill psql");
    client.wait().expect("wait");
    let pid = nix::unistd::Pid::from_raw(postgres.child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("kill");
    assert_eq!(postgres.finish(), Some(End::Code(0)));
}
