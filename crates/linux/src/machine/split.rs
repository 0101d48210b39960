// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel frees the zeros of a huge page that it splits (Linux 6.12, commit b1f202060afe). It is tried on memory of
//! this process.

use super::{base_page, thp_page};
use crate::proc::memory::MADV_COLLAPSE;
use crate::proc::pagemap;
use crate::proc::procfs::Process;
use crate::proc::reservation::Reservation;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::collapse::Pages;
use std::io;
use std::sync::OnceLock;

/// Returns whether the kernel frees the zeros of a huge page that it splits; `None` if no huge page was to be had for a try, or if
/// the kernel does not show which memory is huge.
pub fn frees_zeros() -> Option<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    KNOWN.get().copied().or_else(|| {
        let tried = try_once();
        tried.inspect(|frees| _ = KNOWN.set(*frees))
    })
}

fn try_once() -> Option<bool> {
    let pid = Process::OWN.pid().cast_signed();
    let page = thp_page()?;
    let (huge, base) = (usize::try_from(page.bytes()).ok()?, usize::try_from(base_page().bytes()).ok()?);
    let mut reserved = Reservation::new(huge, page).ok()?;
    let start = reserved.map_memory(0, huge, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE).ok()?;
    let range = Range::sized(Addr(start as u64), page.bytes())?;
    let advise = |at: *mut u8, len: usize, advice: i32| {
        // SAFETY: madvise(2) of memory that was mapped above; these advices change no byte.
        let done = unsafe { libc::madvise(at.cast(), len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    advise(start, huge, libc::MADV_HUGEPAGE).ok()?;
    // SAFETY: the mapping is writable and belongs to this function.
    unsafe { start.write_volatile(1) };
    if pagemap::huge_bytes(pid, range).ok()? < range.len() {
        advise(start, huge, MADV_COLLAPSE).ok()?;
    }
    if pagemap::huge_bytes(pid, range).ok()? < range.len() {
        return None;
    }
    // SAFETY: the second base page of the mapping.
    let second = unsafe { start.add(base) };
    advise(second, base, libc::MADV_COLD).ok()?;
    let is_split = pagemap::huge_bytes(pid, range).ok()? == 0;
    let pages = Pages::of(&pagemap::entries(&pagemap::open(pid).ok()?, range).ok()?);
    match pages.own {
        // The kernel may have referenced it just then.
        _ if !is_split => None,
        1 => Some(true),
        all if all == pages.all => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Returns the major and the minor number of this kernel's version.
    fn version() -> (u32, u32) {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("osrelease");
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    #[test]
    fn issue_32_4_this_kernel_is_tried() {
        // Mappings are not counted here: other tests of this program map memory at the same time. The reservation unmaps its own.
        // Memory may be short of huge pages for a moment, and a child that another test has made may share the one that is tried.
        let until = Instant::now() + Duration::from_secs(2);
        while frees_zeros().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        match frees_zeros() {
            None => println!("SKIP: no huge page to try it with"),
            Some(frees) => assert_eq!(frees, version() >= (6, 12), "kernel {:?}", version()),
        }
    }
}
