// SPDX-License-Identifier: Apache-2.0
//! The event of one thread, with the ring buffer that the kernel fills.

use crate::records::{Batch, pieces};
use hugelift_linux::machine::base_page;
use nix::errno::Errno;
use perf_event_open_sys::bindings::{self, perf_event_attr, perf_event_mmap_page};
use perf_event_open_sys::ioctls;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The least bytes of a ring: at 16 bytes a sample, those of half a second.
const LEAST: usize = 8 << 10;

/// An event that samples.
#[derive(Debug)]
pub(super) struct Ring {
    event: OwnedFd,
    /// The page of the kernel's positions, followed by the ring.
    mapped: NonNull<libc::c_void>,
    page: usize,
    size: usize,
}

impl Ring {
    /// Samples the thread once for each `period` of its CPU time, from now on.
    ///
    /// # Errors
    /// perf_event_open(2) or mmap(2) fails; the latter with EPERM where the memory may not be locked.
    pub(super) fn open(thread: i32, period: Duration, user_only: bool) -> Result<Ring, Errno> {
        let mut attr = perf_event_attr {
            size: size_of::<perf_event_attr>() as u32,
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_CPU_CLOCK.into(),
            sample_type: bindings::PERF_SAMPLE_IP.into(),
            ..perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = nanoseconds(period);
        attr.set_exclude_kernel(user_only.into());
        attr.set_exclude_hv(1);
        let flags = u64::from(bindings::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: perf_event_open(2): attr is live and holds its size; the result is a new file.
        let event = unsafe {
            let fd = perf_event_open_sys::perf_event_open(&raw mut attr, thread, -1, -1, flags);
            if fd < 0 {
                return Err(Errno::last());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let page = usize::try_from(base_page().bytes()).map_err(|_| Errno::EINVAL)?;
        let size = LEAST.max(page);
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, event.as_raw_fd());
        // SAFETY: mmap(2) at a new address: of the event's positions and ring, which nothing else maps.
        let mapped = unsafe { libc::mmap(null_mut(), page + size, access, libc::MAP_SHARED, fd, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mapped = NonNull::new(mapped).ok_or(Errno::ENOMEM)?;
        Ok(Ring { event, mapped, page, size })
    }

    /// Sets the CPU time between two samples.
    pub(super) fn set_period(&self, period: Duration) {
        let period = nanoseconds(period);
        // The kernel takes the address of the number, for which the crate has a plain integer.
        let address = (&raw const period).expose_provenance() as u64;
        // SAFETY: ioctl(2), PERF_EVENT_IOC_PERIOD: an open perf event, and the address of a live integer, which is read.
        // If it fails, the rate stays.
        unsafe { ioctls::PERIOD(self.event.as_raw_fd(), address) };
    }

    /// Adds what the kernel has written since the last reading. `buffer` is memory to use again.
    pub(super) fn read(&mut self, batch: &mut Batch, buffer: &mut Vec<u8>) {
        let control = self.mapped.as_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: both fields are aligned and live as long as the mapping. The kernel writes the head, and this process
        // alone the tail.
        let (head, tail) = unsafe {
            let position = |field| AtomicU64::from_ptr(field);
            (position(&raw mut (*control).data_head), position(&raw mut (*control).data_tail))
        };
        // What was written before the head moved is visible behind this load.
        let written = head.load(Ordering::Acquire);
        buffer.clear();
        for piece in pieces(tail.load(Ordering::Relaxed), written, self.size).into_iter().flatten() {
            // SAFETY: the piece lies inside the ring, which is mapped behind the page of positions. The kernel does not
            // write to it until the tail has passed it.
            let bytes = unsafe {
                let start = self.mapped.as_ptr().cast::<u8>().add(self.page + piece.start);
                std::slice::from_raw_parts(start, piece.len())
            };
            buffer.extend_from_slice(bytes);
        }
        // The copy is done before the kernel may write there again.
        tail.store(written, Ordering::Release);
        batch.add(buffer);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: munmap(2): the mapping of `open`, to which nothing refers any more.
        unsafe { libc::munmap(self.mapped.as_ptr(), self.page + self.size) };
    }
}

fn nanoseconds(period: Duration) -> u64 {
    u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)
}
