// SPDX-License-Identifier: Apache-2.0
//! The server in a poll(2) loop, with clients of all kinds at real sockets.
//!
//! Times are given to the server, so no test waits for a deadline to pass.

use super::*;
use nix::poll::{PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const TEXT: &str = "# TYPE hugelift_a gauge\nhugelift_a 1\n# EOF\n";
const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// A test that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A server at both kinds of sockets.
struct Setting {
    server: Server,
    folder: tempfile::TempDir,
    port: u16,
}

impl Setting {
    fn new(text: &[u8]) -> Setting {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::default();
        server.set_text(text.into());
        server.listen_at(&folder.path().join("s")).unwrap();
        let port = server.listen_on(loopback(0)).unwrap();
        Setting { server, folder, port }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn connect(&self) -> UnixStream {
        patient(UnixStream::connect(self.path()).unwrap())
    }

    /// Returns how many clients each socket has.
    fn clients(&self) -> [usize; 2] {
        [&self.server.unix, &self.server.tcp].map(|listener| listener.as_ref().unwrap().clients())
    }

    /// Runs the loop until each socket has so many clients: the end of a connection arrives later than its last byte.
    fn wait_for(&mut self, clients: [usize; 2]) {
        let (_open, never) = UnixStream::pair().unwrap();
        let last = Instant::now() + PATIENCE;
        while self.clients() != clients {
            assert!(Instant::now() < last, "{:?}", self.clients());
            self.turn(&never);
        }
    }

    /// Runs the loop until the clients, which run in a thread of their own, are done.
    fn run<T: Send>(&mut self, clients: impl FnOnce(&Path, u16) -> T + Send) -> T {
        let (path, port) = (self.path(), self.port);
        let (done, end) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let clients = scope.spawn(move || {
                // It is dropped at the end, also by a panic.
                let _end = end;
                clients(&path, port)
            });
            let last = Instant::now() + PATIENCE;
            while self.turn(&done) {
                assert!(Instant::now() < last, "the clients hang");
            }
            clients.join().unwrap()
        })
    }

    /// Waits for an event and does what there is to do. Returns false if the clients are done.
    fn turn(&mut self, done: &UnixStream) -> bool {
        let now = Instant::now();
        let mut fds = vec![PollFd::new(done.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.server.wanted(now));
        let until = self.server.next_deadline(now).unwrap_or(now + PATIENCE);
        let timeout = until.saturating_duration_since(now) + Duration::from_millis(1);
        poll(&mut fds, PollTimeout::try_from(timeout).unwrap()).unwrap();
        let is_done = fds[0].any().unwrap();
        self.server.go_on(Instant::now());
        !is_done
    }
}

/// Returns whether a descriptor of the server is ready now.
fn is_ready(server: &Server, now: Instant) -> bool {
    is_ready_within(server, now, PollTimeout::ZERO)
}

fn is_ready_within(server: &Server, now: Instant, time: PollTimeout) -> bool {
    let mut fds: Vec<PollFd> = server.wanted(now).collect();
    poll(&mut fds, time).unwrap() > 0
}

fn patient(stream: UnixStream) -> UnixStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns all that the server sends.
fn read(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    read(stream)
}

fn ask_at(path: &Path, request: &str) -> String {
    ask(patient(UnixStream::connect(path).unwrap()), request)
}

fn ask_on(port: u16, request: &str) -> String {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    ask(stream, request)
}

/// Checks an answer with the metrics, and returns its body.
fn metrics(answer: &str) -> &str {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{head}"
    );
    body
}

#[test]
fn issue_33_clients_of_both_sockets_get_the_metrics() {
    let mut setting = Setting::new(TEXT.as_bytes());
    setting.run(|path, port| {
        for _ in 0..20 {
            assert_eq!(metrics(&ask_at(path, GET)), TEXT);
            assert_eq!(metrics(&ask_on(port, GET)), TEXT);
        }
        assert!(ask_at(path, "GET / HTTP/1.1\r\n\r\n").ends_with("Its metrics are at /metrics\n"));
        assert!(ask_on(port, "GET /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
        assert!(ask_on(port, "PUT / HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET\r\n"));
    });
    setting.wait_for([0, 0]);
}

#[test]
fn issue_33_many_clients_at_once_are_all_answered() {
    let mut setting = Setting::new(&TEXT.as_bytes().repeat(10_000));
    setting.run(|path, port| {
        std::thread::scope(|scope| {
            for number in 0..40 {
                scope.spawn(move || {
                    let answer = if number % 2 == 0 { ask_at(path, GET) } else { ask_on(port, GET) };
                    assert_eq!(metrics(&answer).len(), TEXT.len() * 10_000);
                });
            }
        });
    });
}

#[test]
fn issue_33_a_request_may_come_in_pieces() {
    let mut setting = Setting::new(TEXT.as_bytes());
    setting.run(|path, _| {
        let mut slow = patient(UnixStream::connect(path).unwrap());
        for byte in GET.as_bytes() {
            slow.write_all(&[*byte]).unwrap();
            assert_eq!(metrics(&ask_at(path, GET)), TEXT);
        }
        assert_eq!(metrics(&read(slow)), TEXT);
    });
}

#[test]
fn issue_33_a_client_that_never_reads_delays_nobody() {
    // More than a socket holds, and sent in less than the time that a client has, also by a busy machine.
    const LEN: usize = 1 << 20;
    let mut setting = Setting::new(&vec![b'x'; LEN]);
    let mut lazy = setting.connect();
    lazy.write_all(GET.as_bytes()).unwrap();
    let bytes = setting.run(|path, port| [ask_at(path, GET), ask_on(port, GET)].map(|a| metrics(&a).len()));
    assert_eq!(bytes, [LEN; 2]);
    setting.wait_for([1, 0]);
    let now = Instant::now();
    assert!(!is_ready(&setting.server, now));
    let deadline = setting.server.next_deadline(now).unwrap();
    assert!(deadline <= now + Duration::from_secs(5));
    setting.server.go_on(deadline);
    assert_eq!((setting.clients(), setting.server.next_deadline(deadline)), ([0, 0], None));
}

#[test]
fn issue_33_a_client_reads_the_text_that_it_has_begun() {
    let mut setting = Setting::new(&vec![b'x'; 4 << 20]);
    let mut client = setting.connect();
    client.write_all(GET.as_bytes()).unwrap();
    setting.server.go_on(Instant::now());
    setting.server.set_text(TEXT.as_bytes().into());
    let old = setting.run(move |path, _| {
        assert_eq!(metrics(&ask_at(path, GET)), TEXT);
        metrics(&read(client)).len()
    });
    assert_eq!(old, 4 << 20);
}

#[test]
fn issue_33_a_long_request_is_refused_and_the_client_learns_it() {
    let mut setting = Setting::new(TEXT.as_bytes());
    setting.run(|path, port| {
        let long = format!("GET /metrics HTTP/1.1\r\nCookie: {}\r\n\r\n", "a".repeat(100_000));
        assert!(ask_on(port, &long).starts_with("HTTP/1.1 431 "));
        assert!(ask_at(path, &long).starts_with("HTTP/1.1 431 "));
        assert_eq!(metrics(&ask_at(path, GET)), TEXT);
    });
}

#[test]
fn issue_33_a_client_that_floods_is_dropped() {
    let mut setting = Setting::new(TEXT.as_bytes());
    let flood = setting.connect();
    flood.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut turns = 0;
    // Its bytes are never fewer than the server takes. One millisecond passes with each turn.
    while turns < 10 || setting.clients() != [0, 0] {
        while (&flood).write(&[0xff; 65536]).is_ok() {}
        turns += 1;
        setting.server.go_on(start + Duration::from_millis(turns));
        assert!(turns <= 5001, "it is still there");
    }
    // It gets its answer at once, and then has a second to close the connection.
    assert!((1000..1100).contains(&turns), "{turns}");
}

#[test]
fn issue_33_what_is_no_http_is_answered() {
    let mut setting = Setting::new(TEXT.as_bytes());
    setting.run(|path, port| {
        assert!(ask_on(port, "\u{16}\u{3}\u{1}\n\n").starts_with("HTTP/1.1 400 "));
        assert!(ask_at(path, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").starts_with("HTTP/1.1 505 "));
        assert!(ask_on(port, "GET /\u{1b}[2J\u{0} HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    });
}

#[test]
fn issue_33_clients_that_do_nothing_lose_their_places_when_others_wait() {
    let mut setting = Setting::new(TEXT.as_bytes());
    let idle: Vec<UnixStream> = (0..20).map(|_| setting.connect()).collect();
    let start = Instant::now();
    setting.server.go_on(start);
    assert_eq!(setting.clients(), [listener::PLACES, 0]);
    // Others wait, but each client has a second. The loop sleeps until then.
    assert!(!is_ready(&setting.server, start));
    let turn = setting.server.next_deadline(start).unwrap();
    assert_eq!(turn, start + Duration::from_secs(1));
    // The port has places of its own.
    assert_eq!(metrics(&setting.run(|_, port| ask_on(port, GET))), TEXT);
    assert!(is_ready(&setting.server, turn));
    setting.server.go_on(turn);
    assert_eq!(setting.clients(), [listener::PLACES, 0]);
    let end = |mut stream: &UnixStream| stream.read(&mut [0]).ok();
    assert_eq!(end(&idle[0]), Some(0), "the first has lost its place");
    idle[19].set_nonblocking(true).unwrap();
    assert_eq!(end(&idle[19]), None, "the last has one, or waits");
}

#[test]
fn issue_33_a_client_that_hangs_up_does_not_keep_the_loop_awake() {
    let mut setting = Setting::new(&vec![b'x'; 4 << 20]);
    for request in ["", "GET", GET] {
        let mut client = setting.connect();
        client.write_all(request.as_bytes()).unwrap();
        setting.server.go_on(Instant::now());
        assert_eq!(setting.clients(), [1, 0]);
        drop(client);
        // A child that another test starts has the client's descriptor too until it executes its program.
        let patience = PollTimeout::try_from(PATIENCE).unwrap();
        assert!(is_ready_within(&setting.server, Instant::now(), patience), "{request:?}");
        setting.server.go_on(Instant::now());
        assert_eq!(setting.clients(), [0, 0], "{request:?}");
        assert!(!is_ready(&setting.server, Instant::now()), "{request:?}");
    }
}

#[test]
fn issue_33_without_figures_the_server_says_so() {
    let mut setting = Setting::new(b"");
    setting.server.text = None;
    assert!(setting.run(|path, _| ask_at(path, GET)).starts_with("HTTP/1.1 503 "));
}

#[test]
fn issue_33_curl_understands_it() {
    let mut setting = Setting::new(TEXT.as_bytes());
    let outputs = setting.run(|path, port| {
        let curl = |words: &[&str]| {
            Command::new("curl").args(["-sS", "--noproxy", "*", "-m", "30"]).args(words).output()
        };
        let url = format!("http://127.0.0.1:{port}/metrics");
        [
            curl(&["--unix-socket", path.to_str().unwrap(), "http://localhost/metrics"]),
            curl(&[&url]),
            curl(&["-d", "body", "-o", "/dev/null", "-w", "%{http_code}", &url]),
            curl(&["-I", "-o", "/dev/null", "-w", "%{http_code}", &url]),
        ]
    });
    let Ok(outputs) = outputs.into_iter().collect::<Result<Vec<_>, _>>() else {
        println!("SKIP: there is no curl");
        return;
    };
    let shown: Vec<&str> =
        outputs.iter().map(|output| std::str::from_utf8(&output.stdout).unwrap()).collect();
    assert_eq!(shown, [TEXT, TEXT, "405", "405"], "{outputs:?}");
}

#[test]
fn issue_33_the_port_is_of_this_machine_only() {
    let setting = Setting::new(TEXT.as_bytes());
    let error = TcpStream::connect(("127.0.0.2", setting.port)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let error = Server::default().listen_on(loopback(setting.port)).unwrap_err();
    assert!(matches!(error, ListenError::Taken(_)), "{error}");
}

#[test]
fn issue_33_another_address_of_the_port() {
    let mut server = Server::default();
    let port = server.listen_on((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
    TcpStream::connect(("127.0.0.2", port)).unwrap();
    // An address of documentation (RFC 5737) is none of this machine.
    let error = server.listen_on((Ipv4Addr::new(192, 0, 2, 1), port).into()).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen at 192.0.2.1:{port}: ")), "{error}");
}

#[test]
fn issue_33_the_socket_is_for_the_user_and_the_group() {
    let setting = Setting::new(TEXT.as_bytes());
    let path = setting.path();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
    let error = Server::default().listen_at(&path).unwrap_err();
    assert!(matches!(error, ListenError::Taken(_)), "{error}");
    drop(setting.server);
    assert!(!path.exists());
}

/// The limit is that of the process, so the test runs itself in a child.
#[test]
fn issue_33_a_lack_of_descriptors_pauses_accepting() {
    const CHILD: &str = "HUGELIFT_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let name = "metrics::serve::tests::issue_33_a_lack_of_descriptors_pauses_accepting";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(
            output.status.success() && output.stdout.escape_ascii().to_string().contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let mut setting = Setting::new(TEXT.as_bytes());
    let _client = setting.connect();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    let now = Instant::now();
    setting.server.go_on(now);
    assert!(!is_ready(&setting.server, now), "the loop would not sleep");
    let end = setting.server.next_deadline(now).unwrap();
    assert_eq!((setting.clients(), end), ([0, 0], now + Duration::from_secs(1)));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(is_ready(&setting.server, end));
    setting.server.go_on(end);
    assert_eq!(setting.clients(), [1, 0]);
}

/// Makes the socket of a daemon that was killed. Nobody has ever listened at it: a program that another test starts would have the
/// listener open until its execve(2).
fn dead_socket(path: &Path) {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
}

#[test]
fn issue_33_only_a_dead_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    dead_socket(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut server = Server::default();
    server.listen_at(&path).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    drop(server);
    fs::write(&path, "precious").unwrap();
    let error = Server::default().listen_at(&path).unwrap_err();
    assert!(error.to_string().contains("is a regular file"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let error = Server::default().listen_at(Path::new("/nonexistent/\u{1b}s")).unwrap_err();
    assert!(error.to_string().starts_with("cannot listen at /nonexistent/\\x1bs: "), "{error}");
}

#[test]
fn issue_33_a_socket_of_another_daemon_is_not_removed() {
    let setting = Setting::new(TEXT.as_bytes());
    let path = setting.path();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(setting.server);
    assert!(path.exists());
}
