// SPDX-License-Identifier: Apache-2.0
//! A hook for the tests, compiled into debug builds alone: kills the helper or the target
//! just before a chosen ptrace operation. `HUGELIFT_TEST_DIE=N:helper`, `N:target`, or
//! `count` (the helper then prints how many operations there were).

#[cfg(not(debug_assertions))]
pub fn pass(_tid: i32) {}

#[cfg(not(debug_assertions))]
pub fn finish() {}

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
                libc::kill(pid, libc::SIGKILL);
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
