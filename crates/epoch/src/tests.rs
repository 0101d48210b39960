// SPDX-License-Identifier: Apache-2.0
//! Tests of internals. They have a file of their own, since tests/loom.rs compiles the other files.

use crate::contract::{Contract, Domain, Stamp};
use crate::donated::{DOMAIN, Donated, GENERATION_SHIFT, Word};
use crate::epochs::Epochs;
use crate::sync::Ordering;
use std::thread;

#[test]
fn a_task_that_enters_during_a_wait_is_not_waited_for() {
    let epochs = Epochs::new(2);
    epochs.enter(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| epochs.wait());
        while epochs.epoch.0.load(Ordering::Acquire) == 1 {
            thread::yield_now();
        }
        epochs.enter(1);
        assert!(!waiter.is_finished());
        epochs.exit(0);
        waiter.join().expect("it returns");
    });
    assert!(epochs.is_completed(1) && !epochs.is_completed(2));
}

#[test]
fn a_completed_epoch_is_not_waited_for_again() {
    let domain = Domain::<Epochs>::new(1);
    let mut task = domain.join().expect("room for one");
    let stamp = task.enter().stamp();
    domain.wait();
    let _later = task.enter();
    // The wait would hang if it read the words: the epoch is completed, but a task is inside.
    domain.wait_for(stamp);
}

/// Replays the order of events by which a stamp once was an epoch that was already completed.
#[test]
fn a_task_that_was_slow_to_enter_is_waited_for() {
    let epochs = Epochs::new(1);
    let stale = epochs.epoch.0.load(Ordering::Acquire);
    epochs.wait();
    assert!(epochs.is_completed(stale));
    epochs.enter_in(0, stale);
    let stamp = epochs.stamp(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| epochs.wait_for(stamp));
        // The waiter advances the epoch before it reads the word of the task.
        while epochs.epoch.0.load(Ordering::Acquire) == stale + 1 {
            assert!(!waiter.is_finished(), "it does not wait for the task");
            thread::yield_now();
        }
        assert!(!waiter.is_finished());
        epochs.exit(0);
        waiter.join().expect("it returns");
    });
}

#[test]
fn generations_start_again_at_zero() {
    let last = Word(((1 << (64 - GENERATION_SHIFT)) - 1) << GENERATION_SHIFT);
    let first = last.linked_to(7).next();
    assert_eq!((first.stamp(), first.link()), (Stamp(0), DOMAIN));
    assert!(first.has_reached(last.stamp()) && !last.has_reached(first.stamp()));
    assert!(first.has_reached(first.stamp()) && first.next().has_reached(first.stamp()));
}

#[test]
fn the_list_works_while_generations_wrap_around() {
    let list = Donated::new(2);
    let last = (1u64 << (64 - GENERATION_SHIFT)) - 1;
    list.word(DOMAIN).store(last << GENERATION_SHIFT, Ordering::Relaxed);
    list.enter(1);
    list.enter(0);
    assert_eq!((list.stamp(1), list.stamp(0)), (Stamp(0), Stamp(1)));
    list.exit(1);
    assert!(list.load(DOMAIN).has_reached(Stamp(0)) && !list.load(DOMAIN).has_reached(Stamp(1)));
    list.exit(0);
    list.wait();
    assert!(list.load(DOMAIN).has_reached(Stamp(1)));
}

#[test]
fn generations_are_donated_in_any_order_of_exits() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let list = Donated::new(3);
        (0..3).for_each(|task| list.enter(task));
        for (last, task) in order.into_iter().enumerate() {
            list.exit(task);
            // All tasks up to the oldest one inside have exited.
            let oldest = (0..3).find(|task| !order[..=last].contains(task)).unwrap_or(3);
            assert_eq!(list.load(DOMAIN).stamp(), Stamp(oldest as u64), "{order:?}, {last}");
        }
        assert_eq!(list.youngest(), Some((DOMAIN, list.load(DOMAIN))));
    }
}
