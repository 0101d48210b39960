// SPDX-License-Identifier: Apache-2.0
//! The cycle that a task repeats: map 128 MB, touch some of it, unmap it.

use crate::memory::Pages;
use std::io;
use std::ptr;

/// Bytes of each mapping: the size in will-it-scale's mmap1.
pub const BYTES: usize = 128 << 20;

/// Which pages of each mapping are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// No page, as in will-it-scale's mmap1.
    None,
    /// The first page.
    First,
    /// Every page.
    All,
}

impl Touch {
    /// All values.
    pub const ALL: [Touch; 3] = [Touch::None, Touch::First, Touch::All];

    /// Returns the name that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Touch::None => "untouched",
            Touch::First => "first page",
            Touch::All => "all pages",
        }
    }
}

/// A kind of cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// Kind of pages that it maps.
    pub pages: Pages,
    /// Which pages it touches.
    pub touch: Touch,
}

impl Cycle {
    /// Runs one cycle. Allocates nothing, so that a child of fork(2) may call it.
    ///
    /// # Errors
    /// Those of mmap(2) and munmap(2): too little memory, or an empty pool.
    pub fn run(self) -> io::Result<()> {
        let start = self.map()?;
        let step = match self.touch {
            Touch::None => 0,
            Touch::First => BYTES,
            // One write for each page of the smallest possible size. On huge pages most of these writes are
            // cheap, and all kinds of pages have the same number of them.
            Touch::All => 4096,
        };
        if step > 0 {
            for at in (0..BYTES).step_by(step) {
                // SAFETY: inside the mapping made above, which is writable and not shared.
                unsafe { start.add(at).write_volatile(1) };
            }
        }
        // SAFETY: munmap(2) of the mapping made above.
        match unsafe { libc::munmap(start.cast(), BYTES) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn map(self) -> io::Result<*mut u8> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: mmap(2) at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, prot, self.pages.flags(), -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if self.pages == Pages::Thp {
            // SAFETY: madvise(2) of the mapping made above. Whether the kernel follows the advice is checked
            // beforehand, not in each cycle.
            unsafe { libc::madvise(start, BYTES, libc::MADV_HUGEPAGE) };
        }
        Ok(start.cast())
    }
}

/// Switches transparent huge pages off or on for the calling process (prctl(2), `PR_SET_THP_DISABLE`).
/// Returns whether they were off before.
pub fn without_thp(without: bool) -> bool {
    // SAFETY: prctl(2) with plain numbers.
    unsafe {
        let before = libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(without), 0, 0, 0);
        before > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_measure::stats::{Estimate, ratio};
    use std::ffi::{CString, c_long};
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    /// The loop of will-it-scale's mmap1.
    const LOOP: &str = "#include <sys/mman.h>
        long loop(long cycles) {
          for (long i = 0; i < cycles; i++) {
            void *p = mmap(0, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED || munmap(p, 128 << 20)) return -1;
          }
          return cycles;
        }";
    /// Cycles that are timed together. They take some milliseconds.
    const CYCLES: c_long = 1000;

    /// Builds the C loop and loads it into this process. In another process the mappings would have other
    /// neighbours; whether the kernel merges a mapping with its neighbour changes the time by a quarter.
    fn loop_in_c() -> unsafe extern "C" fn(c_long) -> c_long {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, object) = (dir.path().join("loop.c"), dir.path().join("loop.so"));
        std::fs::write(&source, LOOP).expect("the source");
        let built =
            Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).args([&object, &source]).status();
        assert!(built.as_ref().is_ok_and(|status| status.success()), "cc: {built:?}");
        let object = CString::new(object.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: the object built above, which has no constructors; its function has this type.
        unsafe {
            let handle = libc::dlopen(object.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "dlopen of {object:?}");
            let function = libc::dlsym(handle, c"loop".as_ptr());
            assert!(!function.is_null(), "dlsym of loop");
            std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(c_long) -> c_long>(function)
        }
    }

    /// Returns the CPU time of `work` in seconds.
    fn timed(work: impl FnOnce()) -> f64 {
        let began = crate::clock::thread_cpu_ns();
        work();
        (crate::clock::thread_cpu_ns() - began) as f64 * 1e-9
    }

    fn pair(in_c: unsafe extern "C" fn(c_long) -> c_long, c_first: bool) -> (f64, f64) {
        // SAFETY: it maps and unmaps its own memory only.
        let c = || timed(|| assert_eq!(unsafe { in_c(CYCLES) }, CYCLES));
        let own = || {
            let cycle = Cycle { pages: Pages::Small, touch: Touch::None };
            timed(|| (0..CYCLES).for_each(|_| cycle.run().expect("memory")))
        };
        if c_first {
            let first = c();
            (first, own())
        } else {
            let first = own();
            (c(), first)
        }
    }

    /// The cycle costs the same as a loop in C within 5 %, by as many pairs as that takes to show. So nothing
    /// but the two system calls is measured.
    #[test]
    fn a_cycle_costs_what_it_does_in_c() {
        let in_c = loop_in_c();
        let mut pairs = Vec::new();
        let within = |e: &Estimate| e.interval.is_some_and(|i| i.low >= 0.95 && i.high <= 1.05);
        let estimate = loop {
            pairs.extend((0..20).map(|n| pair(in_c, n % 2 == 0)));
            let estimate = ratio(&pairs).expect("times");
            if within(&estimate) || pairs.len() >= 1000 {
                break estimate;
            }
        };
        println!("{estimate:?}");
        assert!(within(&estimate), "{estimate:?}");
    }
}
