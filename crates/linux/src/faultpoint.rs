// SPDX-License-Identifier: Apache-2.0
//! Fault points for the tests, compiled into debug builds only.
//!
//! A fault point ([`pass`]) is just before each ptrace operation, and before each step that makes an entry of the store.
//! A test can also act before each step that reads the store ([`moment`]), where nothing is counted.
//!
//! | variable | what happens |
//! |---|---|
//! | `HUGELIFT_TEST_DIE=N:helper`, `N:target` | the helper or the target is killed at point `N` |
//! | `HUGELIFT_TEST_DIE=N:stopped` | the helper stops there |
//! | `HUGELIFT_TEST_DIE=count` | the helper prints how many points it has passed |
//! | `HUGELIFT_TEST_MOMENTS=SOCKET` | before each such operation and step the helper sends a number (8 bytes, native order) to this Unix socket, one more each time, and goes on when one byte has come back, or after two seconds |
//! | `HUGELIFT_TEST_LACKS=NAME` | the kernel does not have the call, or the request of a call, of this name |
//! | `HUGELIFT_TEST_PATIENCE=MS` | how long the launcher and the helper wait, also for a borrowed thread |
//! | `HUGELIFT_TEST_PRESSURE=FILE` | this file is read in place of `/proc/pressure/memory` |

use std::path::PathBuf;
use std::time::Duration;

/// Does nothing: the command that ships has no fault points.
#[cfg(not(debug_assertions))]
pub fn pass(_tid: i32) {}

/// Does nothing: the command that ships has no fault points.
#[cfg(not(debug_assertions))]
pub fn moment() {}

/// Does nothing: the command that ships has no fault points.
#[cfg(not(debug_assertions))]
pub fn finish() {}

/// Returns how long to wait where the usual time is `time`.
#[cfg(not(debug_assertions))]
pub fn patience(time: Duration) -> Duration {
    time
}

/// Returns how long to wait where the usual time is `time`.
#[cfg(debug_assertions)]
pub fn patience(time: Duration) -> Duration {
    let named = std::env::var("HUGELIFT_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    named.map_or(time, Duration::from_millis)
}

/// Returns the file that a test wants read in place of the machine's memory pressure.
#[cfg(not(debug_assertions))]
pub fn pressure_file() -> Option<PathBuf> {
    None
}

/// Returns the file that a test wants read in place of the machine's memory pressure.
#[cfg(debug_assertions)]
pub fn pressure_file() -> Option<PathBuf> {
    std::env::var_os("HUGELIFT_TEST_PRESSURE").map(PathBuf::from)
}

/// Returns whether a test wants a kernel without the call of this name.
#[cfg(not(debug_assertions))]
pub fn lacks(_name: &str) -> bool {
    false
}

/// Returns whether a test wants a kernel without the call of this name.
#[cfg(debug_assertions)]
pub fn lacks(name: &str) -> bool {
    std::env::var_os("HUGELIFT_TEST_LACKS").is_some_and(|lacked| lacked == name)
}

#[cfg(debug_assertions)]
pub use armed::{finish, moment, pass};

#[cfg(debug_assertions)]
mod armed {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::cell::RefCell;
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// The longest time that a test may take for what it does at a point.
    const MOMENT: Duration = Duration::from_secs(2);

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static TOLD: AtomicU64 = AtomicU64::new(0);

    fn request() -> &'static str {
        static REQUEST: OnceLock<String> = OnceLock::new();
        REQUEST.get_or_init(|| std::env::var("HUGELIFT_TEST_DIE").unwrap_or_default())
    }

    /// Counts an operation that is about to be made on `tid`, and does there what a test has asked for.
    pub fn pass(tid: i32) {
        let n = PASSED.fetch_add(1, Ordering::Relaxed);
        moment();
        let Some((at, victim)) = request().split_once(':') else { return };
        if at.parse() == Ok(n) {
            let pid = if victim == "target" { Pid::from_raw(tid) } else { Pid::this() };
            let _ = kill(pid, if victim == "stopped" { Signal::SIGSTOP } else { Signal::SIGKILL });
        }
    }

    /// Lets a test act, and waits for its answer. Each thread and each process has a connection of its own. One that
    /// fails is not used again.
    pub fn moment() {
        thread_local! {
            static TEST: RefCell<Option<(u32, Option<UnixStream>)>> = const { RefCell::new(None) };
        }
        let n = TOLD.fetch_add(1, Ordering::Relaxed);
        TEST.with_borrow_mut(|test| {
            let here = std::process::id();
            if test.as_ref().is_none_or(|(pid, _)| *pid != here) {
                *test = Some((here, connect()));
            }
            let Some((_, stream)) = test else { return };
            let told = stream
                .as_mut()
                .map(|stream| stream.write_all(&n.to_ne_bytes()).and_then(|()| answer(stream)));
            if matches!(told, Some(Err(_))) {
                *stream = None;
            }
        });
    }

    /// Waits for the test's byte. The timer of a deadline interrupts the read again and again, and each time the
    /// kernel's timeout would begin anew.
    fn answer(stream: &mut UnixStream) -> io::Result<()> {
        let began = Instant::now();
        loop {
            match stream.read(&mut [0]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted && began.elapsed() < MOMENT => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn connect() -> Option<UnixStream> {
        let path = std::env::var_os("HUGELIFT_TEST_MOMENTS")?;
        let stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(MOMENT)).ok()?;
        Some(stream)
    }

    /// Prints the count, if requested, once the helper has done its work.
    pub fn finish() {
        if request() == "count" {
            eprintln!("hugelift-test: ptrace operations: {}", PASSED.load(Ordering::Relaxed));
        }
    }
}
