// SPDX-License-Identifier: Apache-2.0
//! The event of one thread, with the ring buffer that the kernel fills.

use crate::event::{Event, nanoseconds};
use crate::records::{Batch, pieces};
use hugelift_core::heat::data::precise::spe;
use hugelift_linux::machine::base_page;
use nix::errno::Errno;
use perf_event_open_sys::bindings::perf_event_mmap_page;
use perf_event_open_sys::ioctls;
use std::os::fd::{AsRawFd, OwnedFd};
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
    aux: Option<Aux>,
}

// SAFETY: both mappings are the ring's own, and no thread is bound to them.
unsafe impl Send for Ring {}

/// The buffer into which a PMU writes by itself.
#[derive(Debug)]
struct Aux {
    mapped: NonNull<libc::c_void>,
    size: usize,
    /// No more is to be sampled.
    is_stopped: bool,
}

impl Ring {
    /// Samples the thread from now on.
    ///
    /// # Errors
    /// perf_event_open(2) or mmap(2) fails; the latter with EPERM where the memory may not be locked.
    pub(super) fn open(thread: i32, event: &Event, user_only: bool) -> Result<Ring, Errno> {
        let aux = event.aux;
        let event = event.open(thread, user_only)?;
        let page = usize::try_from(base_page().bytes()).map_err(|_| Errno::EINVAL)?;
        let size = LEAST.max(page);
        let mapped = map(&event, page + size, 0)?;
        let mut ring = Ring { event, mapped, page, size, aux: None };
        if aux > 0 {
            ring.aux = Some(ring.map_aux(aux.max(2 * page))?);
            ring.enable()?;
        }
        Ok(ring)
    }

    /// Maps the buffer of the PMU behind the ring ("AUX area" in perf_event_open(2)).
    fn map_aux(&self, size: usize) -> Result<Aux, Errno> {
        let offset = self.page + self.size;
        let control = self.control();
        // SAFETY: both fields are aligned and live as long as the mapping. The kernel reads them in mmap(2).
        unsafe {
            (&raw mut (*control).aux_offset).write_volatile(offset as u64);
            (&raw mut (*control).aux_size).write_volatile(size as u64);
        }
        Ok(Aux { mapped: map(&self.event, size, offset)?, size, is_stopped: false })
    }

    /// Begins, or goes on after the buffer of the PMU was full.
    fn enable(&self) -> Result<(), Errno> {
        // SAFETY: ioctl(2), PERF_EVENT_IOC_ENABLE: an open perf event, no argument.
        Errno::result(unsafe { ioctls::ENABLE(self.event.as_raw_fd(), 0) }).map(drop)
    }

    fn control(&self) -> *mut perf_event_mmap_page {
        self.mapped.as_ptr().cast()
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
        let control = self.control();
        // SAFETY: the fields are aligned and live as long as the mapping.
        let (head, tail) = unsafe { (&raw mut (*control).data_head, &raw mut (*control).data_tail) };
        // SAFETY: the ring lies behind the page of positions, which are its own.
        unsafe { drain(head, tail, self.mapped.as_ptr().cast::<u8>().add(self.page), self.size, buffer) };
        batch.add(buffer);
        if let Some(aux) = &self.aux {
            // SAFETY: as above.
            let (head, tail) = unsafe { (&raw mut (*control).aux_head, &raw mut (*control).aux_tail) };
            // SAFETY: the buffer of the PMU is mapped as long as this lives, and these are its positions.
            let begin = unsafe { drain(head, tail, aux.mapped.as_ptr().cast(), aux.size, buffer) };
            for piece in batch.aux.drain(..) {
                spe(piece.of(begin, buffer), &mut batch.data);
            }
            if !aux.is_stopped {
                // It ends by itself when its buffer is full. If it cannot go on, its thread has ended.
                let _ = self.enable();
            }
        }
    }

    /// Ends the sampling, so that the PMU hands out what it still holds.
    pub(super) fn stop(&mut self) {
        // SAFETY: ioctl(2), PERF_EVENT_IOC_DISABLE: an open perf event, no argument. If it fails, the last samples are missing.
        unsafe { ioctls::DISABLE(self.event.as_raw_fd(), 0) };
        if let Some(aux) = &mut self.aux {
            aux.is_stopped = true;
        }
    }
}

/// Copies what the kernel has written since the last time, and tells it that there is room again. Returns the position of the first
/// byte.
///
/// # Safety
/// `head` and `tail` are the positions of a buffer of `size` bytes at `start`, all of them mapped. The kernel writes the head,
/// and this process alone the tail.
unsafe fn drain(head: *mut u64, tail: *mut u64, start: *const u8, size: usize, buffer: &mut Vec<u8>) -> u64 {
    // SAFETY: both are aligned and mapped.
    let (head, tail) = unsafe { (AtomicU64::from_ptr(head), AtomicU64::from_ptr(tail)) };
    // What was written before the head moved is visible behind this load.
    let written = head.load(Ordering::Acquire);
    let begin = tail.load(Ordering::Relaxed);
    buffer.clear();
    for piece in pieces(begin, written, size).into_iter().flatten() {
        // SAFETY: the piece lies inside the buffer. The kernel does not write to it until the tail has passed it.
        buffer.extend_from_slice(unsafe { std::slice::from_raw_parts(start.add(piece.start), piece.len()) });
    }
    // The copy is done before the kernel may write there again.
    tail.store(written, Ordering::Release);
    begin
}

/// Maps a part of an event.
fn map(event: &OwnedFd, bytes: usize, offset: usize) -> Result<NonNull<libc::c_void>, Errno> {
    let (access, offset) = (libc::PROT_READ | libc::PROT_WRITE, offset as libc::off_t);
    // SAFETY: mmap(2) at a new address: of the event's positions and ring, or of its buffer, which nothing else maps.
    let mapped =
        unsafe { libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, event.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(mapped).ok_or(Errno::ENOMEM)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: munmap(2): the mappings of `open`, to which nothing refers any more.
        unsafe {
            if let Some(aux) = &self.aux {
                libc::munmap(aux.mapped.as_ptr(), aux.size);
            }
            libc::munmap(self.mapped.as_ptr(), self.page + self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_2_what_is_new_is_copied_once() {
        let ring: Vec<u8> = (0..16).collect();
        let (mut head, mut tail, mut buffer) = (0_u64, 0_u64, vec![99]);
        let mut drained = |to: u64, tail: &mut u64| {
            head = to;
            // SAFETY: the positions and the ring are those above.
            let begin =
                unsafe { drain(&raw mut head, &raw mut *tail, ring.as_ptr(), ring.len(), &mut buffer) };
            (begin, buffer.clone())
        };
        assert_eq!(drained(0, &mut tail), (0, vec![]));
        assert_eq!(drained(14, &mut tail), (0, (0..14).collect()));
        // It wraps.
        assert_eq!(drained(19, &mut tail), (14, vec![14, 15, 0, 1, 2]));
        // More than the ring holds: nothing can be read, and it goes on behind it.
        assert_eq!(drained(40, &mut tail), (19, vec![]));
        assert_eq!((drained(41, &mut tail), tail), ((40, vec![8]), 41));
    }
}
