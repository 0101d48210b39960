// SPDX-License-Identifier: Apache-2.0
//! A discrete-event model of tasks that enter and exit (crate `hugelift-epoch`), each on a core of its
//! own. It shows what a machine with more cores than this one might do.
//!
//! Access to a cache line that another core has written last takes a transfer. A line makes one transfer at
//! a time. A line that a core has read stays in its cache until another core writes to it. The core that has
//! the line keeps it until a request has reached it, for half of the time of the transfer. So a core that
//! releases a lock can take it again before another core can ("lock hogging"). Transfers between sockets
//! can take longer. There is no limit to parallel transfers of different lines.
//! Private work varies by a quarter up and down, as real work does. Otherwise all cores would run in
//! lockstep.
//!
//! *Sources* of the model. S. Boyd-Wickizer, M. F. Kaashoek, R. Morris and N. Zeldovich, "Non-scalable
//! locks are dangerous", Linux Symposium 2012: handing over a lock that cores spin on takes as many
//! transfers of its line as there are waiters. Z. Radović and E. Hagersten, "Hierarchical backoff locks for
//! nonuniform communication architectures", HPCA 2003, for the core that takes its lock again and again.
//! U. Drepper, "Futexes are tricky", 2011, for waiters that sleep. All times come from the caller. None of
//! them may come from a measurement of what the model predicts.

mod costs;
mod line;
mod list;
mod lock;
mod simulation;

pub use costs::{Costs, Transfer};
pub use lock::SPINS;

use list::Lists;
use lock::Lock;

/// The implementations of the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// One lock, taken to enter and to exit. A waiter spins for a moment, then sleeps.
    Locked,
    /// The same lock, but a waiter spins until it has the lock, as with FreeBSD's locks while the holder
    /// runs (mutex(9): "adaptive").
    Spinning,
    /// Epochs.
    Epochs,
    /// The lock-free list.
    Donated,
}

/// Returns the operations per second of all cores together.
pub fn throughput(scheme: Scheme, cores: usize, costs: &Costs) -> f64 {
    match scheme {
        Scheme::Epochs => epochs(cores, costs),
        Scheme::Locked => Lock::new(cores, costs, true).run(),
        Scheme::Spinning => {
            let costs = Costs { held: costs.held_spinning, ..*costs };
            Lock::new(cores, &costs, false).run()
        }
        Scheme::Donated => Lists::new(cores, costs).run(),
    }
}

/// Epochs share only the line of the global epoch. Each wait invalidates it once in every core, and takes
/// each task's own line from it once.
fn epochs(cores: usize, costs: &Costs) -> f64 {
    let operation = costs.work + costs.epochs;
    let lost = costs.transfer.nanoseconds(0, cores - 1) * operation / costs.between_waits.max(operation);
    cores as f64 / (operation + 2.0 * lost) * 1e9
}

#[cfg(test)]
mod tests {
    use super::line::Line;
    use super::*;

    const COSTS: Costs = Costs {
        transfer: Transfer::flat(100.0),
        atomic: 5.0,
        held: 20.0,
        held_spinning: 20.0,
        pause: 10.0,
        wake: 1000.0,
        awake: 5000.0,
        wake_nobody: 200.0,
        refused: 200.0,
        epochs: 10.0,
        work: 400.0,
        between_waits: 1e6,
    };

    fn near(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.03
    }

    #[test]
    fn one_core_takes_what_its_steps_take() {
        // Two times the lock.
        for lock in [Scheme::Locked, Scheme::Spinning] {
            assert!(near(throughput(lock, 1, &COSTS), 1e9 / (400.0 + 2.0 * 20.0)));
        }
        assert!(near(throughput(Scheme::Epochs, 1, &COSTS), 1e9 / 410.0));
        // Exchange and own store; mark and exchange.
        assert!(near(throughput(Scheme::Donated, 1, &COSTS), 1e9 / (400.0 + 4.0 * 5.0)));
    }

    /// Each hand-over brings the line to all waiters, so a lock with spinning waiters gets slower with more
    /// of them. A lock with sleeping waiters gets no slower than a wake-up.
    #[test]
    fn a_contended_lock_gets_slower_with_more_waiters() {
        let of = |scheme, cores| throughput(scheme, cores, &COSTS);
        assert!(of(Scheme::Spinning, 2) < 2.0 * of(Scheme::Spinning, 1));
        let [few, more, most] = [8, 32, 96].map(|cores| of(Scheme::Spinning, cores));
        assert!(few > 2.0 * more && more > 2.0 * most, "{few} {more} {most}");
        // Two hand-overs per operation, each with one to three transfers for each waiter.
        let each = |rate: f64| 1e9 / (2.0 * rate);
        assert!(
            (96.0 * COSTS.transfer.within..3.5 * 96.0 * COSTS.transfer.within).contains(&each(most)),
            "{}",
            each(most)
        );
        assert!(of(Scheme::Locked, 96) > 3.0 * most);
        assert!(each(of(Scheme::Locked, 96)) < COSTS.awake);
        // Without the cost of transfers only the time for which it is held remains.
        let free_transfers = Costs { transfer: Transfer::flat(0.0), atomic: 0.0, ..COSTS };
        assert!(near(throughput(Scheme::Spinning, 64, &free_transfers), 1e9 / (2.0 * COSTS.held)));
    }

    #[test]
    fn epochs_scale_and_the_list_lies_between() {
        let of = |scheme, cores| throughput(scheme, cores, &COSTS);
        assert!(near(of(Scheme::Epochs, 96), 96.0 * of(Scheme::Epochs, 1)));
        assert!(of(Scheme::Donated, 96) < of(Scheme::Epochs, 96));
        // With much work no scheme limits the rate.
        let idle = Costs { work: 1e6, ..COSTS };
        for scheme in [Scheme::Locked, Scheme::Spinning, Scheme::Donated] {
            assert!(near(throughput(scheme, 4, &idle), 4e9 / 1e6), "{scheme:?}");
        }
    }

    /// The core that releases the lock takes it again before the request of the other arrives, so two cores
    /// do not need a transfer for each time the lock is taken.
    #[test]
    fn a_core_takes_its_lock_again_before_another() {
        let short = Costs { work: 10.0, atomic: 2.0, held: 5.0, held_spinning: 5.0, ..COSTS };
        for lock in [Scheme::Locked, Scheme::Spinning] {
            let rate = throughput(lock, 2, &short);
            assert!(rate > 2e9 / (4.0 * short.transfer.within), "{lock:?}: {rate}");
            assert!(rate < throughput(lock, 1, &short), "{lock:?}: {rate}");
        }
        // A core keeps its line for half of a transfer.
        let mut line = Line::new(2);
        assert_eq!(line.access(0.0, 0, true, &short), 2.0);
        assert_eq!(line.access(10.0, 1, true, &short), 112.0);
        assert_eq!(line.access(50.0, 0, true, &short), 52.0);
        assert_eq!(line.access(70.0, 0, true, &short), 212.0);
    }

    #[test]
    fn far_sockets_cost_what_their_transfers_cost() {
        let transfer = Transfer { within: 50.0, between: 150.0, socket: 4 };
        assert_eq!(
            (transfer.nanoseconds(0, 3), transfer.nanoseconds(3, 4), transfer.nanoseconds(4, 7)),
            (50.0, 150.0, 50.0)
        );
        let near = Costs { transfer: Transfer::flat(50.0), ..COSTS };
        let far = Costs { transfer, ..COSTS };
        for lock in [Scheme::Locked, Scheme::Spinning] {
            assert_eq!(throughput(lock, 4, &far), throughput(lock, 4, &near), "{lock:?}");
            assert!(throughput(lock, 8, &far) < throughput(lock, 8, &near), "{lock:?}");
        }
    }

    #[test]
    fn the_same_costs_give_the_same_curve() {
        for scheme in [Scheme::Locked, Scheme::Spinning, Scheme::Donated] {
            assert_eq!(throughput(scheme, 7, &COSTS), throughput(scheme, 7, &COSTS));
        }
    }
}
