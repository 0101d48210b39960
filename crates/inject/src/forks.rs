// SPDX-License-Identifier: Apache-2.0
//! fork(2) in another thread while the process changes itself.
//!
//! A child has only the thread that forked. A lock that another thread held is taken in the child for ever, and what
//! another thread was about to undo stays. So
//!
//! - [`words`] are zero in each child: the kernel wipes their page (`MADV_WIPEONFORK`, Linux 4.14), also for a child of
//!   a bare clone(2), which runs no handler of pthread_atfork(3);
//! - `Held` keeps fork(3) waiting for as long as this thread holds a lock of the C library, which the child could
//!   never release. fork(3) waits in a handler of pthread_atfork(3).
//!
//! Neither side waits for ever: the handlers of other libraries may have taken locks that the thread which holds the
//! loader's lock waits for. A fork that has waited for `FORK_WAITS` goes on.
//!
//! _Fork(3) and clone(2) run no handlers. A child that they make in a process with several threads may use neither the
//! loader nor malloc(3) anyhow.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Words of this process. A child of fork(2) finds zeros.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    /// 1 while a thread changes the process.
    pub turn: AtomicU32,
    /// [`HELD`], and the number of threads that fork.
    gate: AtomicU32,
    /// The number of the table that this process has made.
    pub table: AtomicU64,
}

/// A thread holds a lock, or waits for forks to end before it takes the lock.
const HELD: u32 = 1 << 31;
/// How long a fork waits for a thread that holds a lock: that is some microseconds, unless the thread compares bytes
/// while it holds it, or the two wait for each other.
const FORK_WAITS: Duration = Duration::from_secs(1);
/// How long a thread that wants the lock waits for forks, and lets new ones wait.
const HOLD_WAITS: Duration = Duration::from_millis(500);
/// How long one wait lasts at most.
static NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };

static WORDS: AtomicPtr<Words> = AtomicPtr::new(std::ptr::null_mut());
/// Where no page could be wiped, handlers alone clear these.
static PLAIN: Words = Words { turn: AtomicU32::new(0), gate: AtomicU32::new(0), table: AtomicU64::new(0) };

/// Returns the words; `None` before the first call of [`prepare`]. It may be called from signal handlers.
pub fn words() -> Option<&'static Words> {
    // SAFETY: what was once published is never freed.
    unsafe { WORDS.load(Ordering::Acquire).as_ref() }
}

/// Makes the words, and registers the handlers, if that was not done before.
pub fn prepare() -> &'static Words {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    let words = words().unwrap_or_else(make_words);
    // Two threads may both register. Then all is counted twice, which comes to the same.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handlers touch nothing but `WORDS`. In a shared object they are registered as its own, so that
        // the C library forgets them with it.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if failed == 0 {
            REGISTERED.store(true, Ordering::Release);
        }
    }
    words
}

fn make_words() -> &'static Words {
    let made = wiped_page().unwrap_or((&raw const PLAIN).cast_mut());
    let (null, acquire) = (std::ptr::null_mut(), Ordering::Acquire);
    let words = match WORDS.compare_exchange(null, made, Ordering::AcqRel, acquire) {
        Ok(_) => made,
        Err(other) => {
            if !std::ptr::eq(made, &raw const PLAIN) {
                // SAFETY: the page was mapped by `wiped_page`, and nobody else has seen it.
                unsafe { libc::munmap(made.cast(), size_of::<Words>()) };
            }
            other
        }
    };
    // SAFETY: the words are a static, or a page of zeros that is never unmapped once it is published.
    unsafe { &*words }
}

/// Maps a page that the kernel wipes in each child.
fn wiped_page() -> Option<*mut Words> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = size_of::<Words>();
    // SAFETY: a new mapping at an address of the kernel's choice. It is unmapped if it cannot be wiped.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(page, bytes, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, bytes);
            return None;
        }
        Some(page.cast())
    }
}

/// Waits until no thread holds a lock, and keeps others from taking it.
extern "C" fn before() {
    let Some(words) = words() else { return };
    let _errno = Errno::keep();
    let began = Instant::now();
    let enter = |state: u32| (state & HELD == 0 || began.elapsed() >= FORK_WAITS).then_some(state + 1);
    while let Err(state) = words.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter) {
        nap(&words.gate, state);
    }
}

extern "C" fn in_parent() {
    let Some(words) = words() else { return };
    let _errno = Errno::keep();
    // A handler that was registered during this fork was not called before it.
    let leave = |state: u32| (state & !HELD != 0).then(|| state - 1);
    let _ = words.gate.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
    wake(&words.gate);
}

/// Forgets what threads of the parent were doing. Other threads do not exist here.
extern "C" fn in_child() {
    let Some(words) = words() else { return };
    words.turn.store(0, Ordering::Relaxed);
    words.gate.store(0, Ordering::Relaxed);
    words.table.store(0, Ordering::Release);
}

/// The state in which no thread is in fork(3), and no signal handler runs in this thread that might call it.
pub(crate) struct Held {
    words: &'static Words,
    signals: u64,
}

impl Held {
    /// Waits for forks in progress; `None` if one takes too long. Only one thread at a time is held; a second one
    /// waits for the first.
    pub(crate) fn take() -> Option<Held> {
        let words = prepare();
        let signals = block_signals();
        let (began, gate) = (Instant::now(), &words.gate);
        let is_over = || began.elapsed() >= HOLD_WAITS;
        // New forks wait from here on.
        while gate.fetch_or(HELD, Ordering::Acquire) & HELD != 0 {
            if is_over() {
                set_signals(signals);
                return None;
            }
            nap(gate, gate.load(Ordering::Relaxed) | HELD);
        }
        let held = Held { words, signals };
        loop {
            match gate.load(Ordering::Acquire) {
                HELD => return Some(held),
                _ if is_over() => return None,
                forking => nap(gate, forking),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.words.gate.fetch_and(!HELD, Ordering::Release);
        wake(&self.words.gate);
        set_signals(self.signals);
    }
}

/// errno(3) of this thread, which is put back at the end.
struct Errno(i32);

impl Errno {
    fn keep() -> Errno {
        // SAFETY: errno of this thread is always there.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as in `keep`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Blocks all signals except for the signal by which the C library makes all threads do something and waits for them, as in
/// setuid(2). Returns the signals that were blocked before.
fn block_signals() -> u64 {
    const SET_ID: u32 = if cfg!(target_env = "musl") { 34 } else { 33 };
    swap_signals(!(1 << (SET_ID - 1)), libc::SIG_BLOCK)
}

fn set_signals(signals: u64) {
    swap_signals(signals, libc::SIG_SETMASK);
}

/// The C library's own function leaves its own signals alone, so this is the bare system call.
fn swap_signals(new: u64, how: i32) -> u64 {
    const BYTES: usize = size_of::<u64>(); // the kernel's sigset_t
    let mut old = 0_u64;
    // SAFETY: rt_sigprocmask(2) reads and writes two live words.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const new, &raw mut old, BYTES) };
    old
}

/// Waits for a moment while the word has this value.
fn nap(word: &AtomicU32, value: u32) {
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: futex(2) reads a live word and a constant time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const NAP) };
}

fn wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: futex(2) reads the address of a live word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signals that this thread blocks.
    fn blocked() -> u64 {
        swap_signals(0, libc::SIG_BLOCK)
    }

    /// Runs `work` in a child, and returns whether it returned true.
    fn in_a_child(bare: bool, work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `work`, and ends. glibc lets it allocate.
        unsafe {
            let pid = match bare {
                true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
                false => libc::fork(),
            };
            if pid == 0 {
                // What hangs is a failure.
                libc::alarm(20);
                libc::_exit(i32::from(!work()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            status == 0
        }
    }

    /// The state is one for the process, and other tests use it, so the test is a child of its own.
    #[test]
    fn a_fork_waits_for_what_is_held_and_its_child_finds_nothing_held() {
        prepare();
        let test = std::panic::AssertUnwindSafe(waits_and_finds_nothing);
        assert!(in_a_child(false, || std::panic::catch_unwind(test).is_ok()), "see above");
    }

    fn waits_and_finds_nothing() {
        let words = prepare();
        let before = blocked();
        words.turn.store(1, Ordering::Relaxed);
        words.table.store(7, Ordering::Relaxed);
        let clear = || {
            let Words { turn, gate, table } = words;
            turn.load(Ordering::Relaxed) == 0
                && gate.load(Ordering::Relaxed) == 0
                && table.load(Ordering::Relaxed) == 0
        };
        assert!(in_a_child(false, clear), "fork");
        let held = Held::take().expect("no fork is in progress");
        // Without handlers nothing waits, and the page is wiped all the same.
        assert!(in_a_child(true, clear), "clone");
        // A handler of a signal might fork. SIGKILL and SIGSTOP cannot be blocked.
        assert_eq!(blocked() | before, blocked());
        for signal in [libc::SIGUSR1, libc::SIGPROF, libc::SIGCHLD, 32, 40] {
            assert_ne!(blocked() & 1 << (signal - 1), 0, "{signal}");
        }
        static FORKED: AtomicBool = AtomicBool::new(false);
        let forker = std::thread::spawn(move || {
            let is_clear = in_a_child(false, clear);
            FORKED.store(true, Ordering::Release);
            is_clear
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!FORKED.load(Ordering::Acquire), "the fork did not wait");
        drop(held);
        assert!(forker.join().expect("no panic"));
        assert_eq!(blocked(), before);
        // The thread that holds may not wait for ever for a fork, nor a fork for it.
        super::before();
        assert!(Held::take().is_none());
        in_parent();
        let held = Held::take().expect("the fork is over");
        let began = Instant::now();
        super::before();
        assert!(began.elapsed() >= FORK_WAITS);
        in_parent();
        drop(held);
        assert_eq!(words.gate.load(Ordering::Relaxed), 0);
        // What was registered during a fork is called after it alone.
        in_parent();
        assert_eq!(words.gate.load(Ordering::Relaxed), 0);
        words.turn.store(0, Ordering::Relaxed);
        words.table.store(0, Ordering::Relaxed);
    }
}
