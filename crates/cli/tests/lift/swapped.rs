// SPDX-License-Identifier: Apache-2.0
//! Code that a program has changed, and that the kernel has written to swap space since: it is the program's, and neither a lift nor
//! `restore` may put the file's bytes in its place.

use crate::common::guard::Swap;
use crate::common::run::{PATIENCE, end_group, lines_of, spawn, until, wait};
use crate::common::{Cmd, End, HUGELIFT, fat};
use crate::{need, need_root, skip};
use hugelift_core::addr::{Addr, Range};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::pagemap;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// A program whose changed page is in swap space.
struct Changed {
    child: Child,
    lines: Receiver<String>,
    store: PathBuf,
}

impl Changed {
    fn start(store: &Path) -> Changed {
        let mut command = Cmd::new([fat("swapped").build()]).command(None);
        let mut child = spawn(command.stdin(Stdio::piped())).expect("start the victim");
        let lines = lines_of(child.stdout.take().expect("stdout is piped"));
        let line = || lines.recv_timeout(PATIENCE).expect("a line of the victim");
        assert_eq!([line(), line()], ["wrong 0", "ready 1"]);
        Changed { child, lines, store: store.into() }
    }

    fn run(&self, words: &[&str]) {
        let outcome = Cmd::new([HUGELIFT]).args(words).args([self.child.id().to_string()]);
        let outcome = outcome.env("HUGELIFT_STORE", &self.store).bare();
        assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    }

    /// Checks that the function returns what the program has made of it.
    fn is_kept(&mut self, after: &str) {
        self.child.stdin.as_mut().expect("stdin").write_all(b"\n").expect("write");
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("2"), "after {after}");
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = wait(&mut self.child, Instant::now() + PATIENCE);
        end_group(&mut self.child);
    }
}

#[test]
fn code_that_was_changed_and_is_in_swap_space_stays_changed() {
    need_root!();
    need!("mkswap", "swapon", "swapoff");
    let _swap = match Swap::new(64 << 20) {
        Ok(swap) => swap,
        Err(why) => skip!("{why}"),
    };
    let store = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let store = store.path().join("store");
    // The store has the code of one that was not changed.
    let other = Cmd::new([fat("swapped").build()]).env("HUGELIFT_STORE", &store);
    let outcome = other.lifted(&["--backing", "shared", "--whole"]);
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    for backing in ["shared", "thp", "pagecache"] {
        let mut changed = Changed::start(&store);
        changed.run(&["attach", "--whole", "--backing", backing]);
        changed.is_kept(&format!("attach --backing {backing}"));
        changed.run(&["restore"]);
        changed.is_kept(&format!("restore after --backing {backing}"));
    }
    // A copy that was changed.
    let mut changed = Changed::start(&store);
    changed.is_kept("its own change");
    changed.run(&["attach", "--whole", "--backing", "thp"]);
    changed.run(&["restore"]);
    changed.is_kept("restore");
}

/// What decides whether memory that maps a file may be dropped: a page in swap space is no page of the file.
#[test]
fn a_page_in_swap_space_counts_as_written() {
    need_root!();
    need!("mkswap", "swapon", "swapoff");
    let _swap = match Swap::new(64 << 20) {
        Ok(swap) => swap,
        Err(why) => skip!("{why}"),
    };
    let page = base_page();
    let bytes = usize::try_from(page.bytes()).expect("a size");
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.write_all_at(&vec![1; 16 * bytes], 0).expect("write");
    let (len, prot) =
        (NonZeroUsize::new(16 * bytes).expect("bytes"), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    // SAFETY: a new mapping of a file that keeps its length.
    let at = unsafe { mmap(None, len, prot, MapFlags::MAP_PRIVATE, &file, 0).expect("mmap") };
    let range = Range::sized(Addr(at.as_ptr() as u64), len.get() as u64).expect("a range");
    let own = std::process::id().cast_signed();
    // SAFETY: within the mapping; the last page is only read.
    unsafe { at.as_ptr().cast::<u8>().add(15 * bytes).read_volatile() };
    assert_eq!(pagemap::is_written(own, range).ok(), Some(false));
    // SAFETY: within the mapping.
    unsafe { at.as_ptr().cast::<u8>().add(3 * bytes).write_volatile(2) };
    assert_eq!(pagemap::is_written(own, range).ok(), Some(true));
    until("the page is in swap space", || {
        // SAFETY: advice that changes no byte, for the mapping.
        unsafe { libc::madvise(at.as_ptr(), len.get(), libc::MADV_PAGEOUT) };
        pagemap::present_bytes(own, range).expect("pagemap") == 0
    });
    assert_eq!(pagemap::is_written(own, range).ok(), Some(true), "it is in swap space");
    let third = Addr(range.start.0 + 3 * page.bytes());
    assert!(pagemap::is_own(own, third).expect("pagemap"), "it is in swap space");
    // SAFETY: nothing uses the mapping any more.
    unsafe { munmap(at, len.get()).expect("munmap") };
}
