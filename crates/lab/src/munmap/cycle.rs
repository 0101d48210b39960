// SPDX-License-Identifier: Apache-2.0
//! What a task does again and again: map 128 MB, touch some of it, unmap it.

use crate::memory::Pages;
use std::io;
use std::ptr;

/// Bytes of each mapping, those of will-it-scale's mmap1.
pub const BYTES: usize = 128 << 20;

/// What is touched of each mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Nothing, as in will-it-scale's mmap1.
    None,
    /// The first page.
    First,
    /// Every page.
    All,
}

impl Touch {
    /// All of them.
    pub const ALL: [Touch; 3] = [Touch::None, Touch::First, Touch::All];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Touch::None => "untouched",
            Touch::First => "first page",
            Touch::All => "all pages",
        }
    }
}

/// One kind of cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The pages that it maps.
    pub pages: Pages,
    /// What it touches of them.
    pub touch: Touch,
}

impl Cycle {
    /// Does it once. Allocates nothing, so that it may run in a child that fork(2) made.
    ///
    /// # Errors
    /// mmap(2) or munmap(2): no memory, an empty pool.
    pub fn run(self) -> io::Result<()> {
        let start = self.map()?;
        let step = match self.touch {
            Touch::None => 0,
            Touch::First => BYTES,
            // One write for each page that there can be at least; on huge pages the others are
            // cheap, and the same for all kinds.
            Touch::All => 4096,
        };
        if step > 0 {
            for at in (0..BYTES).step_by(step) {
                // SAFETY: inside the mapping made above, which is writable; nobody else knows it.
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
            // SAFETY: madvise(2) of the mapping made above. Whether the kernel follows is looked up
            // beforehand, not each time.
            unsafe { libc::madvise(start, BYTES, libc::MADV_HUGEPAGE) };
        }
        Ok(start.cast())
    }
}

/// Keeps transparent huge pages from the memory of the calling process, or lets it have them
/// (prctl(2), `PR_SET_THP_DISABLE`). Returns what was before.
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

    /// will-it-scale's mmap1, so often.
    const LOOP: &str = "#include <sys/mman.h>
        long loop(long cycles) {
          for (long i = 0; i < cycles; i++) {
            void *p = mmap(0, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED || munmap(p, 128 << 20)) return -1;
          }
          return cycles;
        }";
    /// Cycles that are timed together: some milliseconds.
    const CYCLES: c_long = 1000;

    /// Loaded into this process: what a mapping's neighbours are decides whether the kernel joins it
    /// with them, and with that a quarter of the time.
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

    /// CPU time of this thread that `work` takes, in seconds.
    fn timed(work: impl FnOnce()) -> f64 {
        let now = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        let began = now();
        work();
        let took = std::time::Duration::from(now()) - std::time::Duration::from(began);
        took.as_secs_f64()
    }

    fn pair(in_c: unsafe extern "C" fn(c_long) -> c_long, c_first: bool) -> (f64, f64) {
        // SAFETY: it maps and unmaps, and knows no other memory.
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

    /// Within 5 % of a loop in C, by as many pairs as it takes to tell; not a claim about speed, but
    /// that nothing but the two calls is measured.
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
