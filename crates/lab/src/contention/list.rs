// SPDX-License-Identifier: Apache-2.0
//! The model of the lock-free list, node by node. A core whose exchange fails waits twice as long each time,
//! like `Backoff` of crate `hugelift-epoch`.

use super::{Costs, Events, Line, OPERATIONS, VaryingWork};

/// The next step of a core.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Work,
    /// Looks for the youngest node (entering) or for its own older neighbour (exiting), now at `node`.
    Find {
        entering: bool,
        node: usize,
    },
    /// Exchanges the word of `node`, which it has read at this version.
    Exchange {
        entering: bool,
        node: usize,
        version: u64,
    },
}

/// After this many failures the waiting time no longer doubles.
const ROUNDS: u32 = 7;

/// The cores and the list. Node 0 belongs to the domain, the others to the cores.
pub struct Lists<'a> {
    costs: &'a Costs,
    lines: Vec<Line>,
    /// How often the word of each node has changed: its version.
    versions: Vec<u64>,
    /// How often each core has failed in its present operation.
    failed: Vec<u32>,
    /// The nodes in the list, oldest first, after the node of the domain.
    list: Vec<usize>,
    steps: Vec<Step>,
    events: Events,
    varying: VaryingWork,
}

impl<'a> Lists<'a> {
    /// Makes a model with `cores` cores. Each begins with work.
    pub fn new(cores: usize, costs: &'a Costs) -> Lists<'a> {
        Lists {
            costs,
            lines: vec![Line::new(cores); cores + 1],
            versions: vec![0; cores + 1],
            failed: vec![0; cores],
            list: vec![0],
            steps: vec![Step::Work; cores],
            events: Events::default(),
            varying: VaryingWork::seeded(1),
        }
    }

    fn access(&mut self, now: f64, core: usize, node: usize, write: bool) -> f64 {
        self.lines[node].access(now, core, write, self.costs)
    }

    /// Makes the core start its operation again after a pause; returns when.
    fn again(&mut self, now: f64, core: usize, entering: bool) -> f64 {
        let pauses = 1 << self.failed[core].min(ROUNDS);
        self.failed[core] += 1;
        self.steps[core] = Step::Find { entering, node: 0 };
        now + self.costs.pause * f64::from(pauses)
    }

    /// Runs the model. Returns the operations per second of all cores.
    pub fn run(mut self) -> f64 {
        let cores = self.steps.len();
        for core in 0..cores {
            let work = self.varying.next(self.costs.work);
            self.events.add(work, core);
        }
        let (mut done, mut now) = (0, 0.0);
        while done < cores * OPERATIONS {
            let Some((time, core)) = self.events.next() else { break };
            now = time;
            let (next, exited) = self.step(now, core);
            self.events.add(next, core);
            done += usize::from(exited);
        }
        done as f64 / now.max(1e-9) * 1e9
    }

    /// Makes one step of a core. Returns when its next step is, and whether it has exited.
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
            // The node has left the list meanwhile.
            return self.again(end, core, entering);
        };
        let younger = self.list.get(place + 1).copied();
        let found = if entering { younger.is_none() } else { younger == Some(core + 1) };
        self.steps[core] = match younger {
            _ if found => Step::Exchange { entering, node, version: self.versions[node] },
            Some(younger) => Step::Find { entering, node: younger },
            None => return self.again(end, core, entering),
        };
        // When exiting, the core marks its own node first.
        if found && !entering { self.access(end, core, core + 1, true) } else { end }
    }

    fn exchange(&mut self, now: f64, core: usize, entering: bool, node: usize, version: u64) -> (f64, bool) {
        let as_read = self.versions[node] == version;
        let mut end = self.access(now, core, node, true);
        if !as_read {
            return (self.again(end, core, entering), false);
        }
        self.versions[node] += 1;
        self.steps[core] = Step::Work;
        self.failed[core] = 0;
        if entering {
            self.list.push(core + 1);
            self.versions[core + 1] += 1;
            end = self.access(end, core, core + 1, true);
        } else {
            self.list.retain(|&other| other != core + 1);
        }
        (end + self.varying.next(self.costs.work / 2.0), !entering)
    }
}
