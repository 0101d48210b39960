// SPDX-License-Identifier: Apache-2.0
//! A discrete-event model of tasks on many cores that enter and exit (crate `hugelift-epoch`), each
//! on a core of its own: what a machine with more cores than this one might show.
//!
//! A cache line that was last written by another core takes a transfer; lines are handed over one
//! transfer at a time; what a core has read stays with it until somebody writes. That is all there is to
//! memory: no distance between cores, no limit to what goes on at once. Locks go to whoever asked first.
//! Private work varies by a quarter up and down, as real work does; without, all cores march in step.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What things take on the machine, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// A cache line from another core's cache.
    pub transfer: f64,
    /// An atomic operation on a line that is there.
    pub atomic: f64,
    /// A lock from one core to another who waits for it.
    pub hand_over: f64,
    /// Holding the lock once.
    pub held: f64,
    /// Entering and exiting with epochs, uncontended.
    pub epochs: f64,
    /// What a task does outside of entering and exiting, for each operation.
    pub work: f64,
    /// Between two waits of anybody.
    pub between_waits: f64,
}

/// The implementations of the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// One lock, taken to enter and to exit.
    Locked,
    /// Epochs.
    Epochs,
    /// The lock-free list.
    Donated,
}

/// Operations a second of all cores together.
pub fn throughput(scheme: Scheme, cores: usize, costs: &Costs) -> f64 {
    match scheme {
        Scheme::Epochs => epochs(cores, costs),
        Scheme::Locked => locked(cores, costs),
        Scheme::Donated => Lists::new(cores, costs).run(),
    }
}

/// Operations of each core that are followed.
const OPERATIONS: usize = 300;

/// Nothing is shared but the global epoch, which each wait takes away once from every core.
fn epochs(cores: usize, costs: &Costs) -> f64 {
    let operation = costs.work + costs.epochs;
    let lost = costs.transfer * operation / costs.between_waits.max(operation);
    cores as f64 / (operation + lost) * 1e9
}

/// Events in the order of time; those of one time in the order of cores.
#[derive(Default)]
struct Events(BinaryHeap<Reverse<(u64, usize)>>);

impl Events {
    /// Picoseconds keep the order exact.
    fn add(&mut self, nanoseconds: f64, core: usize) {
        self.0.push(Reverse(((nanoseconds.max(0.0) * 1e3) as u64, core)));
    }

    fn next(&mut self) -> Option<(f64, usize)> {
        self.0.pop().map(|Reverse((time, core))| (time as f64 / 1e3, core))
    }
}

/// Work that varies: a linear congruential generator (Knuth's MMIX).
struct Varying(u64);

impl Varying {
    fn work(&mut self, mean: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        mean * (0.75 + 0.5 * (self.0 >> 33) as f64 / f64::from(1u32 << 31))
    }
}

fn locked(cores: usize, costs: &Costs) -> f64 {
    let mut events = Events::default();
    let mut varying = Varying(1);
    // Two takes of the lock an operation, half of the work after each.
    let mut takes = vec![0usize; cores];
    let mut queue: VecDeque<usize> = VecDeque::new();
    let (mut holder, mut last, mut now) = (None, None, 0.0);
    for core in 0..cores {
        events.add(varying.work(costs.work), core);
    }
    let total = cores * OPERATIONS * 2;
    let mut done = 0;
    while done < total {
        let Some((time, core)) = events.next() else { break };
        now = time;
        if holder == Some(core) {
            // It lets go.
            holder = None;
            last = Some(core);
            takes[core] += 1;
            done += 1;
            events.add(now + varying.work(costs.work / 2.0), core);
        } else {
            queue.push_back(core);
        }
        if holder.is_none()
            && let Some(next) = queue.pop_front()
        {
            let cost = match last {
                Some(last) if last == next => 0.0,
                None => 0.0,
                // Somebody who waited is told; else it is the line that must come.
                Some(_) if next != core => costs.hand_over,
                Some(_) => costs.transfer,
            };
            holder = Some(next);
            events.add(now + cost + costs.held, next);
        }
    }
    done as f64 / 2.0 / now.max(1e-9) * 1e9
}

/// A cache line: when it is free, and which cores have it as it is.
#[derive(Clone)]
struct Line {
    free: f64,
    has: Vec<bool>,
    version: u64,
}

/// Where a core is in its operation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Work,
    /// Looks for the youngest (entering) or for its older neighbour (exiting), at this node now.
    Find {
        entering: bool,
        node: usize,
    },
    /// Exchanges this node's word, read in this version.
    Exchange {
        entering: bool,
        node: usize,
        version: u64,
    },
}

/// The lock-free list, node by node. Node 0 is the domain's; the others are the cores'.
struct Lists<'a> {
    costs: &'a Costs,
    lines: Vec<Line>,
    /// Oldest first; the domain's node in front.
    list: Vec<usize>,
    steps: Vec<Step>,
    events: Events,
    varying: Varying,
}

impl<'a> Lists<'a> {
    fn new(cores: usize, costs: &'a Costs) -> Lists<'a> {
        let line = Line { free: 0.0, has: vec![false; cores], version: 0 };
        Lists {
            costs,
            lines: vec![line; cores + 1],
            list: vec![0],
            steps: vec![Step::Work; cores],
            events: Events::default(),
            varying: Varying(1),
        }
    }

    /// The core gets the line of a node, to read it or for an atomic operation; returns when that is done.
    fn access(&mut self, now: f64, core: usize, node: usize, write: bool) -> f64 {
        let line = &mut self.lines[node];
        let alone = line.has.iter().enumerate().all(|(other, &has)| has == (other == core));
        let end = if (write && alone) || (!write && line.has[core]) {
            now
        } else {
            let end = line.free.max(now) + self.costs.transfer;
            line.free = end;
            end
        };
        if write {
            line.has.fill(false);
        }
        line.has[core] = true;
        if write { end + self.costs.atomic } else { end }
    }

    fn run(mut self) -> f64 {
        let cores = self.steps.len();
        for core in 0..cores {
            let work = self.varying.work(self.costs.work);
            self.events.add(work, core);
        }
        let (mut done, mut now) = (0, 0.0);
        while done < cores * OPERATIONS {
            let Some((time, core)) = self.events.next() else { break };
            now = time;
            let (next, left) = self.step(now, core);
            self.events.add(next, core);
            done += usize::from(left);
        }
        done as f64 / now.max(1e-9) * 1e9
    }

    /// One step of a core: when its next is, and whether it has left.
    fn step(&mut self, now: f64, core: usize) -> (f64, bool) {
        match self.steps[core] {
            Step::Work => {
                let entering = !self.list.contains(&(core + 1));
                self.steps[core] = Step::Find { entering, node: 0 };
                (now, false)
            }
            Step::Find { entering, node } => (self.find(now, core, entering, node), false),
            Step::Exchange { entering, node, version } => self.exchange(now, core, entering, node, version),
        }
    }

    fn find(&mut self, now: f64, core: usize, entering: bool, node: usize) -> f64 {
        let end = self.access(now, core, node, false);
        let place = self.list.iter().position(|&other| other == node);
        let Some(place) = place else {
            // It has left meanwhile: from the start.
            self.steps[core] = Step::Find { entering, node: 0 };
            return end;
        };
        let younger = self.list.get(place + 1).copied();
        let found = if entering { younger.is_none() } else { younger == Some(core + 1) };
        self.steps[core] = match younger {
            _ if found => Step::Exchange { entering, node, version: self.lines[node].version },
            Some(younger) => Step::Find { entering, node: younger },
            None => Step::Find { entering, node: 0 },
        };
        // Leaving, it marks its own node first.
        if found && !entering { self.access(end, core, core + 1, true) } else { end }
    }

    fn exchange(&mut self, now: f64, core: usize, entering: bool, node: usize, version: u64) -> (f64, bool) {
        let as_read = self.lines[node].version == version;
        let mut end = self.access(now, core, node, true);
        if !as_read {
            self.steps[core] = Step::Find { entering, node: 0 };
            return (end, false);
        }
        self.lines[node].version += 1;
        self.steps[core] = Step::Work;
        if entering {
            self.list.push(core + 1);
            self.lines[core + 1].version += 1;
            end = self.access(end, core, core + 1, true);
        } else {
            self.list.retain(|&other| other != core + 1);
        }
        (end + self.varying.work(self.costs.work / 2.0), !entering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        transfer: 100.0,
        atomic: 5.0,
        hand_over: 200.0,
        held: 20.0,
        epochs: 10.0,
        work: 400.0,
        between_waits: 1e6,
    };

    fn near(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.03
    }

    #[test]
    fn one_core_takes_what_its_steps_take() {
        // Two takes of the lock.
        assert!(near(throughput(Scheme::Locked, 1, &COSTS), 1e9 / (400.0 + 2.0 * 20.0)));
        assert!(near(throughput(Scheme::Epochs, 1, &COSTS), 1e9 / 410.0));
        // Exchange and own store; mark and exchange.
        assert!(near(throughput(Scheme::Donated, 1, &COSTS), 1e9 / (400.0 + 4.0 * 5.0)));
    }

    #[test]
    fn a_lock_that_all_want_gives_what_handing_it_over_allows() {
        let most = 1e9 / (2.0 * (200.0 + 20.0));
        assert!(near(throughput(Scheme::Locked, 64, &COSTS), most));
        assert!(throughput(Scheme::Locked, 2, &COSTS) < 2.0 * throughput(Scheme::Locked, 1, &COSTS));
    }

    #[test]
    fn epochs_scale_and_the_list_lies_between() {
        let of = |scheme, cores| throughput(scheme, cores, &COSTS);
        assert!(near(of(Scheme::Epochs, 96), 96.0 * of(Scheme::Epochs, 1)));
        assert!(of(Scheme::Donated, 96) < of(Scheme::Epochs, 96));
        // With work enough no scheme is in the way.
        let idle = Costs { work: 1e6, ..COSTS };
        for scheme in [Scheme::Locked, Scheme::Donated] {
            assert!(near(throughput(scheme, 4, &idle), 4e9 / 1e6), "{scheme:?}");
        }
    }

    #[test]
    fn the_same_costs_give_the_same_curve() {
        for scheme in [Scheme::Locked, Scheme::Donated] {
            assert_eq!(throughput(scheme, 7, &COSTS), throughput(scheme, 7, &COSTS));
        }
    }
}
