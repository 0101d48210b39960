// SPDX-License-Identifier: Apache-2.0
//! The registry under real threads. It is not in that file, which the model checker's test has by its path, with other
//! types of atomics.

use crate::registry::Registry;
use std::sync::atomic::{AtomicBool, Ordering};

/// `make miri` runs this too.
#[test]
fn readers_see_whole_values_while_they_are_replaced() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
    let (registry, ended) = (Registry::new(3, vec![0; 4]), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !ended.load(Ordering::Relaxed) {
                    // A reader in a reader, as a signal handler is. The second one may find no slot.
                    let seen = registry.read(|outer| {
                        assert!(outer.iter().all(|number| *number == outer[0]));
                        let inner = registry.read(|inner| inner[0]);
                        assert!(inner.is_none_or(|inner| inner >= outer[0]));
                        outer[0]
                    });
                    last = seen.map_or(last, |seen| seen.max(last));
                }
                assert!(last <= ROUNDS);
            });
        }
        for round in 1..=ROUNDS {
            registry.replace(vec![round; 4]);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(registry.read(|all| all[3]), Some(ROUNDS));
    // SAFETY: it is replaced no more.
    assert_eq!(unsafe { registry.read_unchanging(|all| all[3]) }, ROUNDS);
}
