// SPDX-License-Identifier: Apache-2.0
//! Fault points for the tests, compiled into debug builds only.
//!
//! `HUGELIFT_TEST_DIE=N:helper` and `N:target` kill the helper or the target just before a chosen
//! ptrace operation, `N:stopped` stops the helper there, and with `count` the helper prints how many
//! operations there were. `HUGELIFT_TEST_PATIENCE` is the time in milliseconds that the launcher and the
//! helper wait, also for a borrowed thread.

use std::time::Duration;

#[cfg(not(debug_assertions))]
pub fn pass(_tid: i32) {}

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

#[cfg(debug_assertions)]
pub use armed::{finish, pass};

#[cfg(debug_assertions)]
mod armed {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);

    fn request() -> &'static str {
        static REQUEST: OnceLock<String> = OnceLock::new();
        REQUEST.get_or_init(|| std::env::var("HUGELIFT_TEST_DIE").unwrap_or_default())
    }

    /// Counts a ptrace operation that is about to be made on `tid`, and kills at the requested one.
    pub fn pass(tid: i32) {
        let n = PASSED.fetch_add(1, Ordering::Relaxed);
        let Some((at, victim)) = request().split_once(':') else { return };
        if at.parse() == Ok(n) {
            let pid = if victim == "target" { Pid::from_raw(tid) } else { Pid::this() };
            let _ = kill(pid, if victim == "stopped" { Signal::SIGSTOP } else { Signal::SIGKILL });
        }
    }

    /// Prints the count, if requested, once the helper has done its work.
    pub fn finish() {
        if request() == "count" {
            eprintln!("hugelift-test: ptrace operations: {}", PASSED.load(Ordering::Relaxed));
        }
    }
}
