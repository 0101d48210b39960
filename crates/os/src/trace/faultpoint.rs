// SPDX-License-Identifier: Apache-2.0
//! Hooks for the tests, compiled into debug builds alone.
//!
//! `HUGELIFT_TEST_DIE=N:helper` and `N:target` kill the helper or the target just before a chosen
//! ptrace operation, `N:stopped` stops the helper there, and with `count` the helper prints how many
//! operations there were. `HUGELIFT_TEST_PATIENCE` says in milliseconds how long the launcher and the
//! helper wait.

use std::time::Duration;

#[cfg(not(debug_assertions))]
pub fn pass(_tid: i32) {}

#[cfg(not(debug_assertions))]
pub fn finish() {}

/// How long is waited where that is usually `time`.
#[cfg(not(debug_assertions))]
pub fn patience(time: Duration) -> Duration {
    time
}

/// How long is waited where that is usually `time`.
#[cfg(debug_assertions)]
pub fn patience(time: Duration) -> Duration {
    let named = std::env::var("HUGELIFT_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    named.map_or(time, Duration::from_millis)
}

#[cfg(debug_assertions)]
pub use armed::{finish, pass};

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);

    fn wish() -> &'static str {
        static WISH: OnceLock<String> = OnceLock::new();
        WISH.get_or_init(|| std::env::var("HUGELIFT_TEST_DIE").unwrap_or_default())
    }

    /// One more ptrace operation is about to be made, on `tid`.
    pub fn pass(tid: i32) {
        let n = PASSED.fetch_add(1, Ordering::Relaxed);
        let Some((at, who)) = wish().split_once(':') else { return };
        if at.parse() == Ok(n) {
            // SAFETY: getpid(2) and kill(2) touch no memory.
            unsafe {
                let pid = if who == "target" { tid } else { libc::getpid() };
                libc::kill(pid, if who == "stopped" { libc::SIGSTOP } else { libc::SIGKILL });
            }
        }
    }

    /// The helper has done its work.
    pub fn finish() {
        if wish() == "count" {
            eprintln!("hugelift-test: ptrace operations: {}", PASSED.load(Ordering::Relaxed));
        }
    }
}
