// SPDX-License-Identifier: Apache-2.0
//! The registry under a model checker, which runs each test in every order of its atomic operations, with a bound on
//! preemptions. The sources, also those of the epochs, are compiled a second time here, with loom's atomics.
//!
//! The value is a loom cell. The writer writes to it when it frees it: an access that is not ordered before that
//! fails the test.

#![allow(dead_code, reason = "the tests use only a part of the sources")]

#[path = "../../epoch/src/contract.rs"]
mod contract;
#[path = "../../epoch/src/epochs.rs"]
mod epochs;
#[path = "../src/registry.rs"]
mod registry;

/// The module that the sources use as `crate::sync`.
mod sync {
    pub use crate::contract::Contract;
    pub use crate::epochs::Epochs;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
    pub use std::sync::PoisonError;

    pub fn publish(word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    pub fn place() -> usize {
        0
    }

    #[derive(Debug, Default)]
    pub struct Backoff(());

    impl Backoff {
        pub fn wait(&mut self) {
            loom::thread::yield_now();
        }
    }
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use registry::Registry;

/// A value that notices who reads it after it was freed.
struct Value(UnsafeCell<u64>);

impl Value {
    fn new(number: u64) -> Value {
        Value(UnsafeCell::new(number))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that nothing writes to it meanwhile, which this test is for.
        self.0.with(|value| unsafe { *value })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: as in `read`.
        self.0.with_mut(|value| unsafe { *value = 99 });
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(model);
}

/// `readers` threads read while the value is replaced `times` times; there are `slots` slots.
fn read_while_replaced(slots: usize, readers: usize, times: u64, preemptions: usize) {
    check(preemptions, move || {
        let registry = Arc::new(Registry::new(slots, Value::new(0)));
        let read = |registry: &Arc<Registry<Value>>| {
            let registry = Arc::clone(registry);
            thread::spawn(move || {
                let seen = registry.read(Value::read);
                assert!(seen.is_none_or(|seen| seen <= times), "{seen:?}");
                assert!(seen.is_some() || slots < readers, "there is a slot for each reader");
            })
        };
        let readers: Vec<_> = (0..readers).map(|_| read(&registry)).collect();
        (1..=times).for_each(|number| registry.replace(Value::new(number)));
        for reader in readers {
            reader.join().expect("a reader ends");
        }
        assert_eq!(registry.read(Value::read), Some(times));
    });
}

#[test]
fn one_reader_sees_no_freed_value() {
    read_while_replaced(1, 1, 2, 3);
}

#[test]
fn two_readers_see_no_freed_value() {
    read_while_replaced(2, 2, 1, 2);
}

#[test]
fn a_reader_without_a_slot_sees_nothing() {
    read_while_replaced(1, 2, 1, 2);
}

#[test]
fn a_reader_inside_a_reader_takes_another_slot() {
    // As a signal handler that interrupts one.
    check(2, || {
        let registry = Arc::new(Registry::new(2, Value::new(0)));
        let reader = {
            let registry = Arc::clone(&registry);
            thread::spawn(move || {
                let both = registry.read(|outer| (outer.read(), registry.read(Value::read)));
                let (outer, inner) = both.expect("a slot");
                assert!(outer <= inner.expect("another slot"), "the value only grows");
            })
        };
        registry.replace(Value::new(1));
        reader.join().expect("a reader ends");
    });
}
