// SPDX-License-Identifier: Apache-2.0
//! A service that takes the programs of root and of a hostile user, and what is to be so whatever that user does.

use super::common::build::must;
use super::common::huge::huge_of;
use super::common::run::{PATIENCE, end_group, finished, until, wait};
use super::common::{Cmd, End, HUGELIFT, cache, fat, open_dir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Huge bytes of a program that is lifted.
const HUGE: u64 = 4 << 20;
/// What copies may take together.
pub const MEMORY: u64 = 64 << 20;
/// The hostile user: no system user.
const USER: [&str; 4] = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];

/// A service that takes an honest program of root, and every program of the hostile user.
pub struct Host {
    dir: tempfile::TempDir,
    store: tempfile::TempDir,
    daemon: Child,
}

impl Host {
    pub fn start() -> Host {
        let dir = open_dir(&[]);
        let at = |name: &str| dir.path().join(name);
        cache::copy(fat("hold").build(), at("honest"));
        must(Command::new("install").args(["-d", "-o", "12345"]).arg(at("user")));
        cache::copy(fat("games").build(), at("user/games"));
        must(Command::new("chown").arg("12345").arg(at("user/games")));
        let daemon = Command::new("true").spawn().expect("true(1)");
        let store = tempfile::TempDir::new_in("/dev/shm").expect("/dev/shm");
        let mut host = Host { dir, store, daemon };
        host.write_policy("64M");
        host.restart();
        host
    }

    /// Writes a policy that is in order, with this much memory for copies.
    pub fn write_policy(&self, memory: &str) {
        let top = self.dir.path().display();
        let policy = format!(
            "[limits]\nmemory = \"{memory}\"\n[keep]\ninterval = \"2s\"\n\
             [[rule]]\nname = \"honest\"\nprogram = \"{top}/honest\"\ndo = [\"code\"]\n\
             [[rule]]\nname = \"user\"\nprogram = \"{top}/user/*\"\nany_user = true\nbudget = \"8M\"\n\
             do = [\"pagecache\", \"code\"]\n\
             [[rule]]\nname = \"rest\"\ndo = []\n"
        );
        fs::write(self.path("service.toml"), policy).expect("write");
    }

    /// Kills the service, if it runs, and starts it again. Its store is its own.
    pub fn restart(&mut self) {
        let _ = self.daemon.kill();
        self.daemon.wait().expect("its end");
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a log");
        let mut command = Command::new(HUGELIFT);
        command.arg("service").arg("--config").arg(self.path("service.toml"));
        command.arg("--drop-ins").arg(self.path("none")).arg("--socket").arg(self.path("s"));
        command.arg("--ledger").arg(self.path("state/ledger.db")).stdin(Stdio::null()).stderr(log);
        self.daemon = command.env("HUGELIFT_STORE", self.store.path()).spawn().expect("the service starts");
        until("it answers", || self.status().is_some());
    }

    /// Returns the id of the service.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// Makes the service read its policy again.
    pub fn reload(&self) {
        kill(Pid::from_raw(self.daemon.id().cast_signed()), Signal::SIGHUP).expect("kill");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the folder of its store.
    pub fn store(&self) -> &Path {
        self.store.path()
    }

    pub fn status(&self) -> Option<Value> {
        let words = [HUGELIFT, "service", "status", "--json", "--socket"];
        serde_json::from_str(&Cmd::new(words).arg(self.path("s")).bare().stdout).ok()
    }

    pub fn log(&self) -> Vec<u8> {
        fs::read(self.path("log")).expect("the log")
    }

    /// Starts an honest program, and returns how long it took until it was lifted. It is not harmed.
    pub fn lifts(&self) -> Duration {
        let path = self.path("honest");
        let piped = || Stdio::piped();
        let mut child =
            Command::new(&path).arg("burn").stdin(piped()).stdout(piped()).spawn().expect("it starts");
        let began = Instant::now();
        until("the honest program is lifted", || huge_of(child.id(), &path).is_some_and(|huge| huge >= HUGE));
        let took = began.elapsed();
        drop(child.stdin.take());
        let done = finished(child);
        assert_eq!((done.end, done.stdout.as_str()), (End::Code(0), "wrong 0\nready\nwrong 0\n"));
        took
    }

    /// Starts a game of the hostile user, in the background.
    pub fn game(&self, words: &[&str]) -> Game {
        self.game_with_nice(19, words)
    }

    /// Starts a game of the hostile user with a nice value.
    pub fn game_with_nice(&self, nice: u32, words: &[&str]) -> Game {
        let mut command = Command::new("nice");
        command.args(["-n", &nice.to_string()]).args(USER).arg(self.path("user/games")).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        Game(command.spawn().expect("it starts"))
    }

    /// Checks that the service runs, has said nothing that acts on a terminal, and has gone by what it may do.
    pub fn is_sound(&mut self) {
        assert_eq!(self.daemon.try_wait().expect("wait"), None, "{}", self.log().escape_ascii());
        let log = self.log();
        let acts = |byte: &u8| byte.is_ascii_control() && *byte != b'\n';
        assert!(!log.iter().any(acts), "{}", log.escape_ascii());
        let status = self.status().expect("it answers");
        let processes = status["processes"].as_array().expect("a list");
        let copies: u64 = processes.iter().filter_map(|one| one["copies_bytes"].as_u64()).sum();
        // The last one to be lifted may go beyond it by its own budget.
        assert!(copies <= MEMORY + (16 << 20), "{status}");
        let own = self.path("user");
        let is_own =
            |file: &Value| file["path"].as_str().is_some_and(|path| Path::new(path).starts_with(&own));
        assert!(!status["files"].as_array().expect("a list").iter().any(is_own), "{status}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.daemon.id().cast_signed()), Signal::SIGTERM);
        if wait(&mut self.daemon, Instant::now() + Duration::from_secs(20)).is_none() {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
    }
}

/// A game that goes on. Its processes are killed when it is dropped.
pub struct Game(Child);

impl Game {
    /// Waits until nice(1) and setpriv(1) have become the game, which needs its file until then.
    pub fn has_begun(&self) {
        let is_game =
            || fs::read_link(format!("/proc/{}/exe", self.0.id())).is_ok_and(|exe| exe.ends_with("games"));
        until("the game begins", is_game);
    }

    /// Checks that no process of it has seen a wrong byte: it would have ended.
    pub fn goes_on(&mut self, name: &str) {
        assert_eq!(self.0.try_wait().expect("wait"), None, "{name}: a process was harmed");
    }

    pub fn ends(mut self, name: &str) {
        let end = wait(&mut self.0, Instant::now() + PATIENCE);
        assert_eq!(end, Some(End::Code(0)), "{name}: a process was harmed");
    }
}

impl Game {
    /// Checks that it has ended well, if it has ended.
    pub fn ends_or_goes_on(mut self) {
        let end = self.0.try_wait().expect("wait").map(End::from);
        assert!(end.is_none_or(|end| end == End::Code(0)), "{end:?}: a process was harmed");
    }
}

impl Drop for Game {
    fn drop(&mut self) {
        end_group(&mut self.0);
    }
}
