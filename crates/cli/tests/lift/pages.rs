// SPDX-License-Identifier: Apache-2.0
//! The pages of programs, followed for each program as Debian ships it: it is started lifted, lifted while it runs, watched,
//! compared with itself and restored, and smaps is read after each.
//!
//! What differs from a page is where the program has its data, and that a process is named by its id in place of its unit.

use crate::common::huge::{files, pieces};
use crate::common::run::{PATIENCE, end_group, spawn, until};
use crate::common::{Cmd, End, HUGELIFT, Outcome, find};
use crate::{need_root, skip};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program with its data in a folder.
struct Program {
    /// The words that start it, as a page has them, with the folder in place of the page's.
    words: Vec<String>,
    /// The file whose code counts.
    object: PathBuf,
    /// Makes it work for a moment; `None`: it works all the time.
    work: Option<fn(&Path)>,
    /// The work is done in children of the process.
    forks: bool,
    /// The user who runs it.
    user: Option<&'static str>,
    /// The data.
    dir: TempDir,
}

/// A process that was started by a command. Its group is killed when this is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        end_group(&mut self.0);
    }
}

impl Program {
    /// Starts it, lifted with these options or bare.
    fn start(&self, options: Option<&[&str]>) -> Started {
        let mut words: Vec<String> = Vec::new();
        match (options, self.user) {
            (Some(options), user) => {
                words.extend([HUGELIFT, "run"].iter().chain(options).map(ToString::to_string));
                words.extend(user.map(|user| format!("--user={user}")));
                words.push("--".into());
            }
            (None, Some(user)) => {
                let ids = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()];
                words.extend(["setpriv".to_string()].into_iter().chain(ids));
            }
            (None, None) => {}
        }
        words.extend(self.words.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("HUGELIFT_STORE", self.store()).process_group(0);
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Started(spawn(&mut command).expect("the program"))
    }

    /// A folder in memory, of which code can be mapped.
    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Runs hugelift on it.
    fn hugelift(&self, words: &[&str]) -> Outcome {
        Cmd::new([HUGELIFT]).args(words).env("HUGELIFT_STORE", self.store()).patience(3 * PATIENCE).bare()
    }

    /// Returns the huge bytes of its code and constants in a process, and those of all whole huge pages.
    fn coverage(&self, pid: u32) -> (u64, u64) {
        let pieces = pieces(pid, std::slice::from_ref(&self.object));
        let whole = pieces.iter().filter_map(|piece| piece.inner).map(|inner| inner.len()).sum();
        (pieces.iter().map(|piece| piece.huge).sum(), whole)
    }

    fn is_lifted(&self, pid: u32) -> bool {
        let (huge, whole) = self.coverage(pid);
        huge == whole && whole > 0
    }

    /// Returns whether code of it that is in use is lifted.
    fn is_partly_lifted(&self, pid: u32) -> bool {
        self.coverage(pid).0 > 0
    }

    /// Waits until it runs and has opened its code, and is idle or works.
    fn wait(&self, started: &Started) -> u32 {
        let pid = started.0.id();
        until(&format!("{:?} runs: {}", self.words, self.log()), || {
            let is_mapped = std::fs::read_to_string(format!("/proc/{pid}/maps"))
                .is_ok_and(|maps| maps.contains(&self.object.display().to_string()));
            is_mapped && !self.is_starting(pid)
        });
        // What it does at its start is done once it has opened no other file for half a second.
        let mut known = files(pid);
        until("it opens no more files", || {
            std::thread::sleep(Duration::from_millis(500));
            let now = files(pid);
            now == std::mem::replace(&mut known, now.clone())
        });
        pid
    }

    /// Starts it bare, where its code holds a whole huge page. Code of less than 4 MB does so at some random bases only: the
    /// 3.1 MB of PHP-FPM at every second one.
    fn start_bare(&self) -> (Started, u32) {
        for _ in 0..40 {
            let started = self.start(None);
            let pid = self.wait(&started);
            if self.coverage(pid).1 > 0 {
                return (started, pid);
            }
            drop(started);
            let _ = std::fs::remove_file(self.socket());
        }
        panic!("no base of 40 has a whole huge page of its code")
    }

    fn is_starting(&self, pid: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("TracerPid:\t0") || self.dir.path().join("wants").exists() && !self.socket().exists()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Works until `is_so`.
    fn work_until(&self, what: &str, is_so: impl Fn() -> bool + Sync) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (is_over, dir) = (&is_over, self.dir.path());
            if let Some(work) = self.work {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Acquire) {
                        work(dir);
                    }
                });
            }
            let deadline = Instant::now() + PATIENCE;
            while !is_so() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_over.store(true, Ordering::Release);
        });
        assert!(is_so(), "waited for {what}: {}", self.log());
    }
}

/// Returns the children of a process that run the same program, and it itself.
fn tree(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).chain([pid]).collect()
}

/// Asserts that the page has these commands, which are followed.
fn has(page: &str, commands: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for command in commands {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("$ {command}"))),
            "{page} has no {command:?}"
        );
    }
}

/// Follows the page of a program.
fn followed(program: &Program) {
    // "hugelift run -- CMD": at the first start it is copied once it has worked for a while.
    for round in ["first", "second"] {
        let started = program.start(Some(&[]));
        let pid = program.wait(&started);
        program.work_until(&format!("run lifts it at its {round} start"), || program.is_partly_lifted(pid));
        assert_eq!(program.log().lines().find(|line| line.starts_with("hugelift: ")), None);
    }
    std::fs::remove_dir_all(program.store()).expect("the store");

    // "hugelift attach PID", and its way back.
    let (_started, pid) = program.start_bare();
    let name = pid.to_string();
    let before = files(pid);
    let attached = program.hugelift(&["attach", "--whole", &name]);
    assert_eq!((attached.end, attached.stderr.as_str()), (End::Code(0), ""), "{attached:?}");
    assert!(program.is_lifted(pid), "{:?}: {attached:?}", program.coverage(pid));
    let restored = program.hugelift(&["restore", &name]);
    assert_eq!((restored.end, files(pid)), (End::Code(0), before.clone()), "{restored:?}");

    // "hugelift attach --watch": each process that works.
    let watch =
        Cmd::new([HUGELIFT, "attach", "--whole", "--watch", &name]).env("HUGELIFT_STORE", program.store());
    let mut watch = watch.command(None);
    let watch = Started(spawn(watch.stdout(Stdio::null())).expect("hugelift"));
    program.work_until("attach --watch lifts it", || {
        if program.forks {
            tree(pid).iter().any(|pid| program.is_partly_lifted(*pid))
        } else {
            program.is_partly_lifted(pid)
        }
    });
    drop(watch);
    for pid in tree(pid) {
        program.hugelift(&["restore", &pid.to_string()]);
    }

    // "hugelift compare --pid PID"; of a server that forks it names the process that works.
    let compared = std::cell::OnceCell::new();
    let compare = |pid: &str| {
        let words = ["compare", "--json", "--pid", pid, "--pairs", "6", "--period", "300ms"];
        program.hugelift(&words)
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, dir) = (&is_over, program.dir.path());
        if let Some(work) = program.work {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    work(dir);
                }
            });
        }
        let _ = compared.set(compare(&name));
        is_over.store(true, Ordering::Release);
    });
    let compared = compared.into_inner().expect("an outcome");
    if program.forks {
        assert!(compared.stderr.contains("its children used"), "{compared:?}");
    } else {
        assert_eq!(compared.end, End::Code(0), "{compared:?}");
        let result: Value = serde_json::from_str(&compared.stdout).expect("JSON");
        assert_ne!(result["variants"][0]["verdict"], "not-switched", "{result}");
        assert_eq!(files(pid), before);
    }
}

/// A folder on a tmpfs, so that the store can be in it. Other users can enter it.
fn folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new_in("/dev/shm").expect("/dev/shm");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// Notes that the program is ready when its socket is there.
fn wants_socket(dir: &Path) {
    std::fs::write(dir.join("wants"), "").expect("write");
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

/// The README and docs/guide/servers.md, for PHP-FPM: its workers are forks of the master.
#[test]
fn issue_29_b5_php_fpm() {
    need_root!();
    has("README.md", &["hugelift run -- CMD", "hugelift attach PID", "hugelift attach --watch"]);
    let Some(fpm) = find("php-fpm8.2") else { skip!("needs php-fpm8.2") };
    let dir = folder();
    let at = dir.path().display().to_string();
    wants_socket(dir.path());
    let page = "<?php $s = 0; for ($i = 0; $i < 2000000; $i++) { $s += $i % 7; } echo $s;";
    std::fs::write(dir.path().join("index.php"), page).expect("write");
    let conf = format!(
        "[global]\nerror_log = {at}/fpm.log\ndaemonize = no\n[www]\nuser = root\ngroup = root\n\
         listen = {at}/socket\npm = static\npm.max_children = 2\n"
    );
    std::fs::write(dir.path().join("fpm.conf"), conf).expect("write");
    let name = fpm.display().to_string();
    let words = words(&[&name, "-R", "-n", "-y", &format!("{at}/fpm.conf")]);
    let work = |dir: &Path| {
        let _ = request(dir);
    };
    followed(&Program { words, object: fpm, work: Some(work), forks: true, user: None, dir });
}

/// Asks PHP-FPM for a page by a FastCGI record of each kind.
fn request(dir: &Path) -> std::io::Result<String> {
    let record = |kind: u8, body: &[u8]| {
        let length = u16::try_from(body.len()).expect("short").to_be_bytes();
        [&[1, kind, 0, 1, length[0], length[1], 0, 0], body].concat()
    };
    let script = dir.join("index.php").display().to_string();
    let mut params = Vec::new();
    for (name, value) in [("SCRIPT_FILENAME", script.as_str()), ("REQUEST_METHOD", "GET")] {
        params.extend([name.len(), value.len()].map(|length| u8::try_from(length).expect("short")));
        params.extend(name.bytes().chain(value.bytes()));
    }
    let mut stream = UnixStream::connect(dir.join("socket"))?;
    let begin = record(1, &[0, 1, 0, 0, 0, 0, 0, 0]);
    stream.write_all(&[begin, record(4, &params), record(4, &[]), record(5, &[])].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// docs/programs/node.md
#[test]
fn issue_29_b5_node() {
    need_root!();
    has("docs/programs/node.md", &["hugelift run -v --eager -- node"]);
    let Some(node) = find("node").and_then(|path| path.canonicalize().ok()) else { skip!("needs node") };
    // Ten milliseconds of each twenty here: a process that never waits is compared by its system calls, of which node makes more or
    // fewer with each collection of garbage.
    let script = "setInterval(() => { JSON.parse(JSON.stringify(Array(20000).fill({ a: 'x' }))) }, 20)";
    // Other tests prime the page cache of node itself. Then this start would have nothing to copy.
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on the disk");
    let object = own.path().join("node");
    crate::common::cache::copy(node, &object);
    let words = words(&[&object.display().to_string(), "-e", script]);
    let program = Program { words, object, work: None, forks: false, user: None, dir: folder() };
    // Its page copies at the start, and says what it brought.
    let started = program.start(Some(&["-v", "--eager"]));
    let pid = program.wait(&started);
    assert!(program.is_lifted(pid), "{:?}: {}", program.coverage(pid), program.log());
    assert!(program.log().contains("/node: text 24 MB of 24 MB, rodata"), "{}", program.log());
    drop(started);
    std::fs::remove_dir_all(program.store()).expect("the store");
    followed(&program);
}

/// docs/programs/jvm.md: the code is in libjvm.so, which the program opens.
#[test]
fn issue_29_b5_java() {
    need_root!();
    has("docs/programs/jvm.md", &["hugelift run -- java", "hugelift attach --name java"]);
    let (Some(java), Some(_)) = (find("java").and_then(|path| path.canonicalize().ok()), find("javac"))
    else {
        skip!("needs java and javac");
    };
    let jvm = java.parent().and_then(Path::parent).expect("a folder").join("lib/server/libjvm.so");
    let dir = folder();
    let source = "class Work { public static void main(String[] a) { java.util.Map<Integer, String> m; long n = 0;\n\
        while (true) { m = new java.util.HashMap<>(); for (int i = 0; i < 100000; i++) m.put(i, \"\" + i);\n\
        n += m.size(); } } }\n";
    std::fs::write(dir.path().join("Work.java"), source).expect("write");
    let compiled = Cmd::new(["javac", "Work.java"]).cwd(dir.path()).bare();
    assert_eq!(compiled.end, End::Code(0), "{compiled:?}");
    let words = words(&["java", "-Xmx128m", "-cp", &dir.path().display().to_string(), "Work"]);
    followed(&Program { words, object: jvm, work: None, forks: false, user: None, dir });
}
