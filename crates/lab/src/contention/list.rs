// SPDX-License-Identifier: Apache-2.0
//! The model of the lock-free list, node by node. A core whose exchange fails waits twice as long each time,
//! like `Backoff` of crate `hugelift-epoch`.

use super::costs::Costs;
use super::line::Line;
use super::simulation::{Events, OPERATIONS, VaryingWork};

/// What a core does, up to its next event.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Work,
    /// Waits before it starts its operation again.
    Wait {
        entering: bool,
    },
    /// Reads the word of `node`, to find the youngest node (entering) or its own older neighbour (exiting).
    Find {
        entering: bool,
        node: usize,
    },
    /// Marks its own word before it exchanges that of `node`, which it has read at this version.
    Mark {
        node: usize,
        version: u64,
    },
    /// Exchanges the word of `node`.
    Exchange {
        entering: bool,
        node: usize,
        version: u64,
    },
    /// Removes the mark from its own word: after entering, or before it tries again to exit.
    Unmark {
        entering: bool,
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
    /// Whether the word of each node is marked: whoever reads it starts again.
    marked: Vec<bool>,
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
            marked: vec![false; cores + 1],
            failed: vec![0; cores],
            list: vec![0],
            steps: vec![Step::Work; cores],
            events: Events::default(),
            varying: VaryingWork::new(),
        }
    }

    fn access(&mut self, now: f64, core: usize, node: usize, write: bool) -> f64 {
        self.lines[node].access(now, core, write, self.costs)
    }

    /// Makes the core start its operation again after a pause; returns when.
    fn again(&mut self, now: f64, core: usize, entering: bool) -> f64 {
        let pauses = 1 << self.failed[core].min(ROUNDS);
        self.failed[core] += 1;
        self.steps[core] = Step::Wait { entering };
        now + self.costs.pause * f64::from(pauses)
    }

    /// Begins a step; returns when it ends.
    fn begin(&mut self, now: f64, core: usize, step: Step) -> f64 {
        self.steps[core] = step;
        match step {
            Step::Work => now + self.varying.next(self.costs.work / 2.0),
            Step::Wait { .. } => now,
            Step::Find { node, .. } => self.access(now, core, node, false),
            Step::Mark { .. } | Step::Unmark { .. } => self.access(now, core, core + 1, true),
            Step::Exchange { node, .. } => self.access(now, core, node, true),
        }
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

    /// Ends a step of a core. Returns when its next step ends, and whether it has exited.
    fn step(&mut self, now: f64, core: usize) -> (f64, bool) {
        let next = match self.steps[core] {
            Step::Work => Step::Find { entering: !self.list.contains(&(core + 1)), node: 0 },
            Step::Wait { entering } => Step::Find { entering, node: 0 },
            Step::Find { entering, node } => match self.found(core, entering, node) {
                Some(next) => next,
                None => return (self.again(now, core, entering), false),
            },
            Step::Mark { node, version } => {
                self.change_own(core, true);
                Step::Exchange { entering: false, node, version }
            }
            Step::Exchange { entering, node, version } => {
                if self.versions[node] != version {
                    if entering {
                        return (self.again(now, core, entering), false);
                    }
                    return (self.begin(now, core, Step::Unmark { entering }), false);
                }
                self.versions[node] += 1;
                self.failed[core] = 0;
                if entering {
                    self.list.push(core + 1);
                    self.change_own(core, true);
                    Step::Unmark { entering }
                } else {
                    self.list.retain(|&other| other != core + 1);
                    return (self.begin(now, core, Step::Work), true);
                }
            }
            Step::Unmark { entering } => {
                self.change_own(core, false);
                if !entering {
                    return (self.again(now, core, entering), false);
                }
                Step::Work
            }
        };
        (self.begin(now, core, next), false)
    }

    /// Marks the own word of a core, or removes the mark.
    fn change_own(&mut self, core: usize, marked: bool) {
        self.versions[core + 1] += 1;
        self.marked[core + 1] = marked;
    }

    /// Returns the step after reading the word of `node`; `None` if the core must start again.
    fn found(&self, core: usize, entering: bool, node: usize) -> Option<Step> {
        let version = self.versions[node];
        if self.marked[node] {
            return None;
        }
        // The node may have left the list meanwhile.
        let place = self.list.iter().position(|&other| other == node)?;
        match self.list.get(place + 1) {
            None => entering.then_some(Step::Exchange { entering, node, version }),
            Some(&younger) if !entering && younger == core + 1 => Some(Step::Mark { node, version }),
            Some(&younger) => Some(Step::Find { entering, node: younger }),
        }
    }
}
