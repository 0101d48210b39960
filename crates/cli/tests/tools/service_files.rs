// SPDX-License-Identifier: Apache-2.0
//! Tests of the files that `hugelift service` keeps: by the table `[keep]` of its configuration. Files come, change and go, and the
//! daemon ends in every way.

use crate::common::run::{PATIENCE, wait};
use crate::common::thrashing::Thrashing;
use crate::common::{CGroup, Cmd, End, HUGELIFT, Held, fat, fits};
use crate::{need, need_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HUGE: u64 = 2 << 20;

/// Leaves all processes alone, which are those of other tests.
const NO_PROCESS: &str = "[[rule]]\nname = \"none\"\nany_user = true\ndo = []\n";

/// A folder with a configuration for a file in it, and the daemon that keeps it.
struct Place {
    dir: TempDir,
    _calm: Calm,
}

/// Short memory affects every daemon: the test that makes memory short runs alone.
enum Calm {
    Shared(#[expect(dead_code, reason = "a guard is held, not read")] RwLockReadGuard<'static, ()>),
    Broken(#[expect(dead_code, reason = "a guard is held, not read")] RwLockWriteGuard<'static, ()>),
}

static CALM: RwLock<()> = RwLock::new(());

impl Place {
    fn new() -> Place {
        Place::with(Calm::Shared(CALM.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn alone() -> Place {
        Place::with(Calm::Broken(CALM.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn with(calm: Calm) -> Place {
        Place { dir: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), _calm: calm }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn victim(&self) -> PathBuf {
        self.path("victim")
    }

    /// Puts a fresh copy of the victim in place, as a package manager does: by renaming.
    fn install(&self) {
        let new = self.path(".victim.new");
        let built = fat("hold").flags(&["-no-pie", "-fno-pie"]).build();
        assert!(Command::new("cp").arg(built).arg(&new).status().unwrap().success());
        fs::rename(new, self.victim()).unwrap();
    }

    fn configure(&self, more: &str) {
        self.write(&format!("files = [\"{}\"]\n{more}\n", self.victim().display()));
    }

    /// Writes the policy: what is to be kept, and no process.
    fn write(&self, keep: &str) {
        fs::write(self.path("service.toml"), format!("{NO_PROCESS}[keep]\n{keep}\n")).unwrap();
    }

    fn words(&self) -> Vec<String> {
        let options = [
            ("config", "service.toml"),
            ("drop-ins", "none"),
            ("ledger", "ledger.db"),
            ("socket", "service.sock"),
        ];
        let given = options
            .into_iter()
            .flat_map(|(option, name)| [format!("--{option}"), self.path(name).display().to_string()]);
        [HUGELIFT, "service"].map(String::from).into_iter().chain(given).collect()
    }

    fn start(&self) -> Daemon<'_> {
        self.start_under(&[])
    }

    fn start_under(&self, before: &[&str]) -> Daemon<'_> {
        let words: Vec<String> = before.iter().map(|w| w.to_string()).chain(self.words()).collect();
        let log = File::create(self.path("log")).unwrap();
        let mut command = Command::new(&words[0]);
        let child = command.args(&words[1..]).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Daemon { child, place: self }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Returns the daemon's status if it answers.
    fn ask(&self) -> Option<Value> {
        let socket = self.path("service.sock").display().to_string();
        let out = Cmd::new([HUGELIFT, "service", "status", "--json", "--socket", &socket]).bare();
        let status = serde_json::from_str(&out.stdout).ok()?;
        fits("service-status", &status);
        Some(status)
    }

    /// Returns how much of the file is huge now.
    fn huge_bytes(&self) -> u64 {
        let check =
            Cmd::new([HUGELIFT, "prime", "--check", "--json", self.victim().to_str().unwrap()]).bare();
        let check: Value = serde_json::from_str(&check.stdout).unwrap();
        check["files"][0]["huge_bytes"].as_u64().unwrap()
    }

    /// Returns whether the file's pages are huge now, made so by the daemon or otherwise.
    fn is_huge(&self) -> bool {
        let victim = self.victim().display().to_string();
        Cmd::new([HUGELIFT, "prime", "--check", &victim]).bare().end == End::Code(0)
    }
}

struct Daemon<'a> {
    child: Child,
    place: &'a Place,
}

impl Daemon<'_> {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Waits until the daemon's status is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        // If memory is short, for example because of other tests, the daemon locks nothing for a minute.
        let deadline = Instant::now() + 3 * PATIENCE;
        let mut last = None;
        while Instant::now() < deadline {
            last = self.place.ask();
            if let Some(status) = last.take_if(|status| wanted(status)) {
                return status;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "waiting for {what}: {ended:?}\n{}", self.place.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("waiting for {what}: {last:#?}\n{}", self.place.log());
    }

    fn end(&mut self) -> End {
        wait(&mut self.child, Instant::now() + PATIENCE).unwrap_or_else(|| panic!("{}", self.place.log()))
    }

    /// Returns the bytes that the daemon has locked, according to the kernel.
    fn locked(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Returns whether the daemon has this file mapped.
    fn maps(&self, path: &Path) -> bool {
        fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap().contains(path.to_str().unwrap())
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_done(status: &Value) -> bool {
    let files = status["files"].as_array().unwrap();
    !files.is_empty() && files.iter().all(|f| f["whole_bytes"] != 0 && f["huge_bytes"] == f["whole_bytes"])
}

/// Returns the place with the file in it, or `None` if its file system has no huge pages.
fn ready(place: Place) -> Option<Place> {
    place.install();
    let out = Cmd::new([HUGELIFT, "prime", place.victim().to_str().unwrap()]).bare();
    place.install();
    (!out.stdout.contains("no huge pages from its file system")).then_some(place)
}

macro_rules! place {
    () => {
        place!(Place::new())
    };
    ($place:expr) => {
        match ready($place) {
            Some(place) => place,
            None => skip!("the file system of {} has no large folios", env!("CARGO_TARGET_TMPDIR")),
        }
    };
}

#[test]
fn what_is_replaced_is_primed_again() {
    let place = place!();
    place.configure("interval = \"1h\"");
    let mut daemon = place.start();
    let status = daemon.until("the first round", is_done);
    assert_eq!((&status["version"], &status["pid"]), (&1.into(), &daemon.pid().into()));
    assert!(place.is_huge());
    let whole = status["files"][0]["whole_bytes"].as_u64().unwrap();
    // As root all of it is locked, otherwise what the usual limit of 8 MB allows.
    assert_eq!(status["locked_bytes"].as_u64().unwrap(), daemon.locked());
    assert!(whole >= 4 * HUGE);

    // It stands still, or it could prime the file before the check has begun.
    daemon.signal(Signal::SIGSTOP);
    place.install();
    assert!(!place.is_huge(), "a fresh copy is huge before it is primed");
    daemon.signal(Signal::SIGCONT);
    daemon.until("the second file", |status| is_done(status) && place.is_huge());
    // The old file is unmapped: its disk space is free.
    let deleted = format!("{} (deleted)", place.victim().display());
    assert!(!daemon.maps(Path::new(&deleted)));

    fs::remove_file(place.victim()).unwrap();
    let status = daemon.until("its end", |status| status["files"].as_array().unwrap().is_empty());
    assert!(status["missing"][0].as_str().unwrap().contains("nothing matches"), "{status:#}");
    assert_eq!(daemon.locked(), 0);
    place.install();
    daemon.until("its return", |status| is_done(status) && place.is_huge());

    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end(), End::Code(0), "{}", place.log());
    assert!(!place.path("service.sock").exists());
    assert!(place.log().contains("huge"), "{}", place.log());
}

/// Drops those pages of the file from the page cache that the kernel can drop.
fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    nix::fcntl::posix_fadvise(&file, 0, 0, advice).unwrap();
}

#[test]
fn what_is_locked_stays_and_what_is_not_comes_back() {
    need_root!();
    let place = place!();
    place.configure("interval = \"1h\"\nbudget = \"4M\"");
    let mut daemon = place.start();
    // While memory is short, as by other tests, the daemon locks nothing.
    daemon.until("the first round", |status| is_done(status) && status["locked_bytes"] == 2 * HUGE);
    assert_eq!(daemon.locked(), 2 * HUGE);
    evict(&place.victim());
    let left = place.huge_bytes();
    // What is not evicted is locked. The kernel may have split it, to compact memory for another test: SIGHUP mends that.
    assert!(left <= 2 * HUGE, "{left}");
    if left < 2 * HUGE {
        daemon.signal(Signal::SIGHUP);
        daemon.until("another round", |_| place.huge_bytes() >= 2 * HUGE);
    }
    // SIGHUP makes the daemon read the new budget and start a round.
    place.configure("interval = \"1s\"\nbudget = \"0\"");
    daemon.signal(Signal::SIGHUP);
    daemon.until("the new budget", |status| status["budget_bytes"] == 0 && is_done(status));
    assert_eq!(daemon.locked(), 0);
    evict(&place.victim());
    daemon.until("the next round", |status| is_done(status) && place.is_huge());
    // A wrong configuration changes nothing.
    place.configure("budget = \"lots\"");
    daemon.signal(Signal::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while !place.log().contains(
        "budget: 'lots' is not a size, as in 64k, 512M, 1G, or 4096 (bytes); the old configuration stays",
    ) {
        assert!(Instant::now() < deadline, "{}", place.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.until("still there", is_done);
}

#[test]
fn a_killed_daemon_leaves_nothing_in_the_way() {
    let place = place!();
    place.configure("");
    let mut daemon = place.start();
    daemon.until("the first round", is_done);
    // A second daemon at the same socket is refused.
    let second = Cmd::new(place.words()).bare();
    assert_eq!(second.end, End::Code(125), "{second:?}");
    assert!(second.stderr.contains("another hugelift service answers at"), "{second:?}");
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.end(), End::Signal(9));
    assert!(place.path("service.sock").exists());
    let asked = Cmd::new([HUGELIFT, "service", "status", "--socket"]).arg(place.path("service.sock")).bare();
    assert_eq!(asked.end, End::Code(125));
    assert!(asked.stderr.contains("no hugelift service answers"), "{asked:?}");
    let mut next = place.start();
    next.until("its successor", is_done);
    let shown = Cmd::new([HUGELIFT, "service", "status", "--socket"]).arg(place.path("service.sock")).bare();
    assert_eq!(shown.end, End::Code(0), "{shown:?}");
    assert!(shown.stdout.contains(&format!("{}: text ", place.victim().display())), "{shown:?}");
    next.signal(Signal::SIGINT);
    assert_eq!(next.end(), End::Code(0));
}

#[test]
fn a_file_in_use_is_primed_when_it_is_free() {
    let place = place!();
    let user = Held::start(&Cmd::new([place.victim()]), None, &place.victim());
    place.configure("interval = \"1s\"");
    let mut daemon = place.start();
    let status = daemon.until("the user", |status| {
        status["files"][0]["obstacles"].as_array().is_some_and(|o| o.iter().any(|o| o["reason"] == "in-use"))
    });
    assert!(!is_done(&status));
    assert_eq!(user.finish().stdout, "wrong 0\nready\nwrong 0\n");
    daemon.until("its end", is_done);
}

/// A file in use is huge for those who start it later, once a copy has its place. That is a person's decision.
#[test]
fn issue_33_2_an_offer_is_listed_and_carried_out() {
    let place = place!();
    let user = Held::start(&Cmd::new([place.victim()]), None, &place.victim());
    place.configure("interval = \"1s\"");
    let mut daemon = place.start();
    daemon.until("the user", |status| {
        status["files"][0]["obstacles"].as_array().is_some_and(|o| o.iter().any(|o| o["reason"] == "in-use"))
    });
    let socket = place.path("service.sock").display().to_string();
    let apply =
        |more: &[&str]| Cmd::new([HUGELIFT, "service", "apply", "--socket", &socket]).args(more).bare();
    let victim = place.victim().display().to_string();
    let listed = apply(&["--json"]);
    let offers: Value = serde_json::from_str(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    fits("service-offers", &offers);
    let is_ours = |offer: &&Value| offer["name"] == *victim;
    let offer =
        offers["offers"].as_array().unwrap().iter().find(is_ours).unwrap_or_else(|| panic!("{offers:#}"));
    assert_eq!(offer["command"], format!("hugelift prime --replace {victim}"));
    let shown = apply(&[]);
    assert!(shown.stdout.contains(&format!("    run   hugelift prime --replace {victim}\n")), "{shown:?}");
    // One that is not there changes nothing, wherever it is named.
    let wrong = apply(&[&victim, "no-such\u{1b}[2J"]);
    assert_eq!(wrong.end, End::Code(125), "{wrong:?}");
    assert_eq!(
        wrong.stderr,
        "hugelift: there is no offer 'no-such\\x1b[2J'; hugelift service apply lists those that there are\n"
    );
    assert!(!place.is_huge());
    let done = apply(&[&victim]);
    assert_eq!(done.end, End::Code(0), "{done:?}");
    assert!(done.stdout.contains(&format!("undo: hugelift prime --restore {victim}\n")), "{done:?}");
    daemon.until("the copy", |status| is_done(status) && place.is_huge());
    let next = Held::start(&Cmd::new([place.victim()]), None, &place.victim());
    for one in [user, next] {
        assert_eq!(one.finish().stdout, "wrong 0\nready\nwrong 0\n");
    }
    let none = apply(&["--json"]);
    assert!(!none.stdout.contains(&victim), "{none:?}");
}

#[test]
fn short_memory_releases_the_locks() {
    need_root!();
    if File::options().write(true).open("/proc/pressure/memory").is_err() {
        skip!("the kernel does not report memory pressure");
    }
    let place = place!(Place::alone());
    place.configure("interval = \"1h\"");
    let mut daemon = place.start();
    daemon.until("the first round", |status| is_done(status) && status["locked_bytes"] != 0);
    let group = match CGroup::new("memory") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if let Err(why) = group.limit(&["memory.max", "memory.limit_in_bytes"], "16M") {
        skip!("{why}");
    }
    let thrashing = Thrashing::start(&group, &place.path("large"));
    let status = daemon.until("memory to be short", |status| status["released"] == true);
    drop(thrashing);
    assert_eq!((&status["locked_bytes"], daemon.locked()), (&0.into(), 0), "{status:#}");
    assert!(place.log().contains("memory is short"), "{}", place.log());
    assert!(is_done(&status), "the status must still show the files as done: {status:#}");
}

#[test]
fn systemd_is_notified() {
    let place = place!();
    place.configure("");
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let notify = format!("NOTIFY_SOCKET={}", place.path("notify").display());
    let mut daemon = place.start_under(&["env", &notify]);
    let heard = || {
        let mut text = [0; 4096];
        // A signal to this process ends recv(2) with a timeout, also if its handler restarts others.
        let n = loop {
            match socket.recv(&mut text) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8_lossy(&text[..n]).into_owned()
    };
    assert!(heard().contains("READY=1"));
    assert!(place.is_huge(), "READY=1 before the first round was done");
    daemon.signal(Signal::SIGHUP);
    let reloading = heard();
    assert!(reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert!(heard().contains("READY=1"));
    daemon.signal(Signal::SIGTERM);
    assert!(heard().contains("STOPPING=1"));
    assert_eq!(daemon.end(), End::Code(0));
}

#[test]
fn a_limit_on_locked_memory_is_reported() {
    need!("setpriv", "prlimit");
    let place = place!();
    place.configure("");
    let limit = ["prlimit", "--memlock=3145728", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-all"];
    let mut daemon = if nix::unistd::geteuid().is_root() {
        place.start_under(&limit)
    } else {
        place.start_under(&limit[..2])
    };
    let status = daemon.until("the first round", is_done);
    let error = status["lock_error"].as_str().unwrap();
    assert!(error.contains("RLIMIT_MEMLOCK is 3 MB") && error.contains("LimitMEMLOCK="), "{error}");
    assert!(daemon.locked() <= 3 << 20);
}

#[test]
fn it_works_without_its_socket() {
    let place = place!();
    place.configure("interval = \"1s\"");
    let mut words = place.words();
    *words.last_mut().unwrap() = "/proc/no/service.sock".to_string();
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stderr(File::create(place.path("log")).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !place.is_huge() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(place.is_huge(), "{}", place.log());
    assert!(place.log().contains("cannot listen at /proc/no/service.sock"), "{}", place.log());
}

/// A data file is kept as code is, and its bytes stay what they are.
#[test]
fn issue_32_1_a_data_file_is_kept() {
    let place = place!();
    let bytes: Vec<u8> = (0..4 * HUGE + 12345).map(|i| ((i * 7) >> 3) as u8).collect();
    let data = place.path("data");
    fs::write(&data, &bytes).unwrap();
    place.write(&format!("files = [\"{}\"]", data.display()));
    let mut daemon = place.start();
    let is_locked = |status: &Value| status["files"][0]["locked_bytes"] == 4 * HUGE;
    let status = daemon.until("the data file", |status| is_done(status) && is_locked(status));
    let file = &status["files"][0];
    assert_eq!(
        (&file["path"], file["whole_bytes"].as_u64()),
        (&data.to_str().unwrap().into(), Some(4 * HUGE))
    );
    assert_eq!(file["locked_bytes"], file["whole_bytes"], "{status:#}");
    assert_eq!(fs::read(&data).unwrap(), bytes);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end(), End::Code(0));
}

#[test]
fn a_wrong_configuration_is_reported_with_its_line() {
    let place = Place::new();
    for (text, says) in [
        ("files = [\"/x\"]\nbuget = \"1M\"\n", "line 7"),
        ("files = [\"x\"]\n", "'x' is not an absolute path"),
    ] {
        place.write(text);
        let out = Cmd::new(place.words()).bare();
        assert_eq!(out.end, End::Code(125));
        assert!(out.stderr.contains(says) && out.stderr.contains("service.toml: "), "{out:?}");
    }
    fs::remove_file(place.path("service.toml")).unwrap();
    let out = Cmd::new(place.words()).bare();
    assert!(out.end == End::Code(125) && out.stderr.contains("there is no policy "), "{out:?}");
}
