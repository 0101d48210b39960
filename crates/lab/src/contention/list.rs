// SPDX-License-Identifier: Apache-2.0
//! The lock-free list, node by node. Who fails waits for twice as long each time, as the code does
//! (`Backoff` of crate `hugelift-epoch`).

use super::{Costs, Events, Line, OPERATIONS, Varying};

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

/// Rounds of waiting after which it takes no longer.
const ROUNDS: u32 = 7;

/// Node 0 is the domain's; the others are the cores'.
pub struct Lists<'a> {
    costs: &'a Costs,
    lines: Vec<Line>,
    /// How often the word of each node has changed.
    versions: Vec<u64>,
    /// How often each core has failed at this step of its operation.
    failed: Vec<u32>,
    /// Oldest first; the domain's node in front.
    list: Vec<usize>,
    steps: Vec<Step>,
    events: Events,
    varying: Varying,
}

impl<'a> Lists<'a> {
    /// So many cores, each with work to do first.
    pub fn new(cores: usize, costs: &'a Costs) -> Lists<'a> {
        Lists {
            costs,
            lines: vec![Line::new(cores); cores + 1],
            versions: vec![0; cores + 1],
            failed: vec![0; cores],
            list: vec![0],
            steps: vec![Step::Work; cores],
            events: Events::default(),
            varying: Varying(1),
        }
    }

    fn access(&mut self, now: f64, core: usize, node: usize, write: bool) -> f64 {
        self.lines[node].access(now, core, write, self.costs)
    }

    /// From the start, after a while.
    fn again(&mut self, now: f64, core: usize, entering: bool) -> f64 {
        let pauses = 1 << self.failed[core].min(ROUNDS);
        self.failed[core] += 1;
        self.steps[core] = Step::Find { entering, node: 0 };
        now + self.costs.pause * f64::from(pauses)
    }

    /// Operations a second of all cores.
    pub fn run(mut self) -> f64 {
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
            // It has left meanwhile.
            return self.again(end, core, entering);
        };
        let younger = self.list.get(place + 1).copied();
        let found = if entering { younger.is_none() } else { younger == Some(core + 1) };
        self.steps[core] = match younger {
            _ if found => Step::Exchange { entering, node, version: self.versions[node] },
            Some(younger) => Step::Find { entering, node: younger },
            None => return self.again(end, core, entering),
        };
        // Leaving, it marks its own node first.
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
        (end + self.varying.work(self.costs.work / 2.0), !entering)
    }
}
