// SPDX-License-Identifier: Apache-2.0
//! Tests that unprivileged clients cannot stop hugelift service from answering or ending.

use super::common::run::{PATIENCE, wait};
use super::common::{Cmd, End, HUGELIFT};
use crate::{need, need_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The daemon ends within this time after SIGTERM, also on a loaded machine. It would take longer if it
/// waited for the hostile clients here.
const SOON: Duration = Duration::from_secs(15);

/// Leaves all processes alone, which are those of other tests.
const NO_PROCESS: &str = "[[rule]]\nname = \"none\"\nany_user = true\ndo = []\n";

/// A folder for a configuration and a socket.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Place(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("service.sock")
    }

    /// Configures 4500 missing files: the answer to a client is then larger than the buffer that the
    /// kernel has for a client that does not read.
    fn configure_much(&self, more: &str) {
        let name = "x".repeat(200);
        let names: Vec<String> = (0..4500).map(|i| format!("\"/no/{name}{i}\"")).collect();
        self.configure(&format!("files = [{}]\n{more}", names.join(",")));
    }

    fn configure(&self, text: &str) {
        fs::write(self.path("service.toml"), format!("{NO_PROCESS}[keep]\n{text}\n")).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(HUGELIFT);
        command.arg("service").arg("--config").arg(self.path("service.toml"));
        command.arg("--drop-ins").arg(self.path("none"));
        command.arg("--ledger").arg(self.path("ledger.db"));
        command.arg("--socket").arg(self.socket()).stdin(Stdio::null());
        command
    }

    fn start(&self) -> Daemon<'_> {
        let log = File::create(self.path("log")).unwrap();
        Daemon { child: self.command().stderr(log).spawn().unwrap(), place: self }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    fn ask(&self) -> super::common::Outcome {
        Cmd::new([HUGELIFT, "service", "status", "--json", "--socket"]).arg(self.socket()).bare()
    }
}

struct Daemon<'a> {
    child: Child,
    place: &'a Place,
}

impl Daemon<'_> {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits until the daemon answers.
    fn until_ready(&mut self) {
        self.until("it answers", |place| place.ask().end != End::Code(125));
    }

    fn until(&mut self, what: &str, done: impl Fn(&Place) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self.place) {
            assert!(Instant::now() < deadline, "waiting until {what}\n{}", self.place.log());
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "waiting until {what}: {ended:?}\n{}", self.place.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that SIGTERM ends the daemon within [`SOON`] and that its socket is gone.
    fn ends_at_sigterm(&mut self) {
        kill(self.pid(), Signal::SIGTERM).unwrap();
        let end = wait(&mut self.child, Instant::now() + SOON);
        assert_eq!(end, Some(End::Code(0)), "after {SOON:?}\n{}", self.place.log());
        assert!(!self.place.socket().exists());
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads that repeat a hostile action until this is dropped.
struct Hostile {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hostile {
    fn start(number: usize, act: impl Fn() + Send + Sync + 'static) -> Hostile {
        let (stop, act) = (Arc::new(AtomicBool::new(false)), Arc::new(act));
        let one = |_| {
            let (stop, act) = (stop.clone(), act.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    act();
                }
            })
        };
        let threads = (0..number).map(one).collect();
        Hostile { stop, threads }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn three_clients_that_connect_in_a_loop_do_not_hold_up_sigterm() {
    let place = Place::new();
    place.configure_much("");
    let mut daemon = place.start();
    daemon.until_ready();
    let socket = place.socket();
    // Once the daemon is gone, connect(2) fails at once and does not block the thread.
    let _hostile = Hostile::start(3, move || drop(UnixStream::connect(&socket)));
    std::thread::sleep(Duration::from_millis(500));
    assert_ne!(place.ask().end, End::Code(125), "an honest client got no answer");
    daemon.ends_at_sigterm();
}

#[test]
fn sixty_clients_that_do_not_read_do_not_hold_up_sigterm() {
    let place = Place::new();
    place.configure_much("");
    let mut daemon = place.start();
    daemon.until_ready();
    let _lazy: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(place.socket()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    daemon.ends_at_sigterm();
}

#[test]
fn a_client_that_dribbles_is_dropped_and_others_are_answered() {
    let place = Place::new();
    place.configure_much("");
    let mut daemon = place.start();
    daemon.until_ready();
    let mut slow = UnixStream::connect(place.socket()).unwrap();
    let dribble = std::thread::spawn(move || {
        let (mut all, mut byte) = (0, [0]);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) {
            if slow.read(&mut byte).unwrap_or(0) == 0 {
                break;
            }
            all += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        // The daemon has dropped the client: only what the kernel has buffered is left to read.
        slow.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest).unwrap();
        all + rest.len()
    });
    std::thread::sleep(Duration::from_millis(200));
    let honest = place.ask();
    assert_ne!(honest.end, End::Code(125), "{}", honest.stderr);
    let seen = dribble.join().unwrap();
    assert!(seen < honest.stdout.len(), "the slow client got the whole answer, {seen} bytes");
    daemon.ends_at_sigterm();
}

#[test]
fn a_flood_of_changes_does_not_hold_up_sigterm() {
    let place = Place::new();
    fs::create_dir(place.path("watched")).unwrap();
    place.configure(&format!("files = [\"{}/*.so\"]", place.path("watched").display()));
    let mut daemon = place.start();
    daemon.until_ready();
    let file = place.path("watched/x");
    let _hostile = Hostile::start(2, move || {
        let _ = fs::write(&file, "x");
        let _ = fs::remove_file(&file);
    });
    std::thread::sleep(Duration::from_millis(500));
    daemon.ends_at_sigterm();
}

#[test]
fn a_file_that_cannot_be_opened_for_long_does_not_hold_up_sigterm() {
    let place = Place::new();
    let file = place.path("leased");
    fs::copy("/proc/self/exe", &file).unwrap();
    // The kernel asks the lease's owner to give it back, and the owner does not: open(2) of another process
    // waits for /proc/sys/fs/lease-break-time seconds.
    let owner = File::options().read(true).write(true).open(&file).unwrap();
    const F_SETSIG: i32 = 10;
    // SAFETY: fcntl(2) with numbers and no pointers; SIGURG is ignored by default.
    let lease = || unsafe {
        nix::libc::fcntl(owner.as_raw_fd(), F_SETSIG, nix::libc::SIGURG);
        nix::libc::fcntl(owner.as_raw_fd(), nix::libc::F_SETLEASE, nix::libc::F_WRLCK)
    };
    // A child that another test has just forked has the file open until it executes its program.
    let is_leased = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        lease() == 0
    });
    if !is_leased {
        skip!("the file system of {} has no leases", place.0.path().display());
    }
    let patience = fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap();
    if patience.trim().parse::<u64>().unwrap() < 2 * SOON.as_secs() {
        skip!("lease-break-time is {} s only", patience.trim());
    }
    place.configure(&format!("files = [\"{}\"]", file.display()));
    let mut daemon = place.start();
    let path = file.display().to_string();
    let breaking = || {
        let leases = fs::read_to_string("/proc/locks").unwrap();
        let inode = format!(":{} ", fs::metadata(&path).unwrap().ino());
        leases.lines().any(|line| line.contains("BREAKING") && line.contains(&inode))
    };
    daemon.until("it waits for the file", |_| breaking());
    daemon.ends_at_sigterm();
}

#[test]
fn nobody_else_may_connect_unless_a_group_is_named() {
    need_root!();
    need!("setpriv");
    let place = Place::new();
    place.configure("files = [\"/no/such\"]");
    let mut daemon = place.start();
    daemon.until_ready();
    let mode = || fs::metadata(place.socket()).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    // The other user may be unable to reach hugelift in the build directory.
    let own = place.path("hugelift");
    crate::common::cache::copy(HUGELIFT, &own);
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |groups: &str| {
        Cmd::new(["setpriv", "--reuid=65534", "--regid=65534", groups])
            .arg(&own)
            .args(["service", "status", "--socket"])
            .arg(place.socket())
            .bare()
    };
    let refused = as_nobody("--clear-groups");
    assert_eq!(refused.end, End::Code(125));
    assert!(refused.stderr.contains("you may not ask the hugelift service at"), "{}", refused.stderr);
    assert!(refused.stderr.contains("group = "), "{}", refused.stderr);

    place.configure("files = [\"/no/such\"]\ngroup = \"daemon\"");
    kill(daemon.pid(), Signal::SIGHUP).unwrap();
    daemon.until("the group may ask", |_| mode() == 0o660);
    let group = nix::unistd::Group::from_name("daemon").unwrap().unwrap().gid;
    assert_eq!(fs::metadata(place.socket()).unwrap().gid(), group.as_raw());
    assert_eq!(as_nobody("--clear-groups").end, End::Code(125));
    let answered = as_nobody(&format!("--groups={group}"));
    assert_eq!(answered.end, End::Code(1), "the status must say that a file is missing: {answered:?}");
    assert!(answered.stdout.contains("nothing matches '/no/such'"), "{answered:?}");

    place.configure("files = [\"/no/such\"]\ngroup = \"no-such-group\"");
    kill(daemon.pid(), Signal::SIGHUP).unwrap();
    daemon.until("only root may ask", |_| mode() == 0o600);
    daemon.until("it says so", |place| place.log().contains("there is no group 'no-such-group'"));
    daemon.ends_at_sigterm();
}

#[test]
fn only_a_dead_socket_of_ones_own_is_replaced() {
    let place = Place::new();
    place.configure("files = [\"/no/such\"]");
    let socket = place.socket();
    let refused = |what: &str| {
        let before = fs::symlink_metadata(&socket).unwrap();
        let out = Cmd::new([HUGELIFT, "service", "--config"])
            .arg(place.path("service.toml"))
            .arg("--drop-ins")
            .arg(place.path("none"))
            .arg("--ledger")
            .arg(place.path("ledger.db"))
            .arg("--socket")
            .arg(&socket)
            .bare();
        assert_eq!(out.end, End::Code(125), "{what}: {out:?}");
        assert_eq!(out.stderr.lines().count(), 1, "{what}: {out:?}");
        assert!(
            out.stderr.contains(what) && out.stderr.contains(socket.to_str().unwrap()),
            "{what}: {out:?}"
        );
        let after = fs::symlink_metadata(&socket).unwrap();
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{what}");
    };
    fs::write(&socket, "precious").unwrap();
    refused("is a regular file, which hugelift service does not replace");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");

    let other = place.path("other");
    fs::rename(&socket, &other).unwrap();
    symlink(&other, &socket).unwrap();
    refused("is a symbolic link");
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    refused("is a directory");
    fs::remove_dir(&socket).unwrap();
    nix::unistd::mkfifo(&socket, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("is a FIFO");
    fs::remove_file(&socket).unwrap();

    // A live socket, first with room in its queue, then with a full queue that no process empties.
    let live = UnixListener::bind(&socket).unwrap();
    refused("another hugelift service answers at");
    let full = fill(&live, &socket);
    refused("another hugelift service answers at");
    drop((live, full));
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&socket, Some(65534), None).unwrap();
        refused("is a socket of user 65534");
        std::os::unix::fs::chown(&socket, Some(0), None).unwrap();
    }
    // Now the socket is dead and belongs to the user of the test.
    let before = fs::symlink_metadata(&socket).unwrap().ino();
    let mut daemon = place.start();
    daemon.until_ready();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket(), "not {before}");
    let mut left: Vec<_> = fs::read_dir(place.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.retain(|name| !name.to_str().unwrap().starts_with("ledger.db"));
    assert_eq!(left.len(), 4, "service.toml, service.sock, log, other: {left:?}");
    // At its end the daemon does not remove a file that replaced its socket.
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    kill(daemon.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut daemon.child, Instant::now() + SOON), Some(End::Code(0)), "{}", place.log());
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
}

/// Connects until the socket's queue is full.
fn fill(live: &UnixListener, path: &std::path::Path) -> Vec<std::os::fd::OwnedFd> {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, listen, socket};
    listen(live, Backlog::new(1).unwrap()).unwrap();
    let address = UnixAddr::new(path).unwrap();
    let mut all = Vec::new();
    loop {
        let one = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        if connect(one.as_raw_fd(), &address).is_err() {
            return all;
        }
        all.push(one);
        assert!(all.len() < 10_000);
    }
}

/// A user who can write to a folder of which files are kept does not end the rounds for the other files.
#[test]
fn a_fifo_of_another_user_does_not_stop_the_rounds() {
    need_root!();
    need!("cp");
    let (place, dir) = (Place::new(), crate::special::special());
    std::os::unix::fs::chown(dir.path().join("fifo"), Some(65534), Some(65534)).unwrap();
    let program = dir.path().join("program");
    let built = super::common::fat("hold").flags(&["-no-pie", "-fno-pie"]).build();
    assert!(Command::new("cp").arg(built).arg(&program).status().unwrap().success());
    place.configure(&format!("files = [\"{}/*o*\"]", dir.path().display()));
    let mut daemon = place.start();
    daemon.until_ready();
    let of_fifo = place.log().lines().filter(|line| line.contains("fifo is not a regular file")).count();
    assert_eq!(of_fifo, 1, "{}", place.log());
    // The file behind it was primed, as far as this file system can.
    let status = place.ask().stdout;
    assert!(status.contains(program.to_str().unwrap()), "{status}");
    daemon.ends_at_sigterm();
}
