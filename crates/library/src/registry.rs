// SPDX-License-Identifier: Apache-2.0
//! One value that is read without locks, also by signal handlers, while it is replaced.
//!
//! A reader takes a free slot and is *inside* in the sense of [`hugelift_epoch`] while it reads the value. A
//! writer puts a new value in place, and frees the old one when each reader that was inside has left. A reader
//! waits for nobody, allocates nothing and makes no system call. A signal handler that interrupts a reader takes
//! another slot.

use crate::sync::{AtomicPtr, AtomicU64, Contract, Epochs, Ordering, place};

const FREE: u64 = 0;
const TAKEN: u64 = 1;

/// A value with its readers.
pub struct Registry<T> {
    epochs: Epochs,
    slots: Vec<AtomicU64>,
    current: AtomicPtr<T>,
}

impl<T> Registry<T> {
    /// Makes a registry with room for `readers` readers at a time.
    pub fn new(readers: usize, first: T) -> Registry<T> {
        Registry {
            epochs: Epochs::new(readers),
            slots: (0..readers).map(|_| AtomicU64::new(FREE)).collect(),
            current: AtomicPtr::new(Box::into_raw(Box::new(first))),
        }
    }

    /// Calls `visit` with the value. Returns `None` if too many readers are inside at this moment.
    ///
    /// In a signal handler `visit` must do nothing that signal-safety(7) forbids.
    pub fn read<R>(&self, visit: impl FnOnce(&T) -> R) -> Option<R> {
        let reader = Reader::enter(self)?;
        let current = reader.registry.current.load(Ordering::Acquire);
        // SAFETY: `current` came from a box. Its writer frees it only after all readers that were inside when it
        // was replaced have left, and this one is inside until `reader` is dropped.
        Some(visit(unsafe { &*current }))
    }

    /// Calls `visit` with a value that nobody replaces any more. It needs no slot.
    ///
    /// # Safety
    /// [`Registry::replace`] is not called any more.
    pub unsafe fn read_unchanging<R>(&self, visit: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the pointer came from a box, which nobody frees before the registry.
        visit(unsafe { &*self.current.load(Ordering::Acquire) })
    }

    /// Puts `next` in place of the value, waits for all readers that may see the old one, and frees that. One
    /// thread at a time may call this, and not from `visit`.
    pub fn replace(&self, next: T) {
        let old = self.current.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        self.epochs.wait();
        // SAFETY: `old` came from a box, no reader can find it any more, and those that had have left.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl<T> Drop for Registry<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and no reader has a reference to this registry any more.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Acquire)) });
    }
}

/// A reader that is inside until it is dropped.
struct Reader<'a, T> {
    registry: &'a Registry<T>,
    slot: usize,
}

impl<T> Reader<'_, T> {
    fn enter(registry: &Registry<T>) -> Option<Reader<'_, T>> {
        let count = registry.slots.len();
        let first = place();
        let take = |slot: &usize| {
            let slot = &registry.slots[*slot];
            slot.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = (0..count).map(|ahead| first.wrapping_add(ahead) % count).find(take)?;
        registry.epochs.enter(slot);
        Some(Reader { registry, slot })
    }
}

impl<T> Drop for Reader<'_, T> {
    fn drop(&mut self) {
        self.registry.epochs.exit(self.slot);
        self.registry.slots[self.slot].store(FREE, Ordering::Release);
    }
}
