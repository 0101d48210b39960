// SPDX-License-Identifier: Apache-2.0
//! A list of generations under one mutex.
//!
//! *Algorithm.* A task that enters gets the next generation and is appended to the young end of the list. A
//! task that exits donates its generation to its older neighbour and leaves the list; the oldest task
//! donates it to the domain. So all tasks up to the generation of the domain have exited. A waiter takes the
//! youngest generation in the list and sleeps until the domain has it. (Exits come in any order. Without the
//! donation the domain would have to search the list.)
//!
//! *Memory ordering.* The mutex orders all entering and exiting. The generation of the domain is also an
//! atomic, stored with release under the mutex. So a wait that has nothing to wait for takes no lock, and its
//! acquire load makes it see all that the exited tasks did.
//!
//! *Source.* FreeBSD's delayed invalidation of 2015 to 2019 (`pmap_delayed_invl_started` in
//! sys/amd64/amd64/pmap.c). Every munmap(2) of every process takes this lock twice.

use crate::contract::{Contract, Padded, Stamp};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// A generation list under a global mutex.
#[derive(Debug)]
pub struct Locked {
    list: Mutex<List>,
    /// The generation of the domain: all tasks up to it have exited.
    left: AtomicU64,
    /// The generation with which each task entered. Only the task writes and reads it. Its node may
    /// have got a later one by donation, which a stamp does not need.
    entered: Vec<Padded<AtomicU64>>,
    /// Notified when `left` grows while there are sleepers.
    grown: Condvar,
}

#[derive(Debug)]
struct List {
    nodes: Vec<Node>,
    youngest: Option<usize>,
    sleepers: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    generation: u64,
    older: Option<usize>,
    younger: Option<usize>,
}

impl Locked {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the youngest generation of all tasks inside, or the last one if no task is inside.
    fn youngest(&self, list: &List) -> u64 {
        list.youngest.map_or_else(|| self.left.load(Ordering::Relaxed), |node| list.nodes[node].generation)
    }

    fn sleep_until<'a>(&'a self, mut list: MutexGuard<'a, List>, generation: u64) {
        while self.left.load(Ordering::Acquire) < generation {
            list.sleepers += 1;
            list = self.grown.wait(list).unwrap_or_else(PoisonError::into_inner);
            list.sleepers -= 1;
        }
    }
}

impl Contract for Locked {
    const NAME: &'static str = "one lock";

    fn new(tasks: usize) -> Locked {
        let list = List { nodes: vec![Node::default(); tasks], youngest: None, sleepers: 0 };
        let entered = (0..tasks).map(|_| Padded(AtomicU64::new(0))).collect();
        Locked { list: Mutex::new(list), left: AtomicU64::new(0), entered, grown: Condvar::new() }
    }

    fn enter(&self, task: usize) {
        let mut list = self.list();
        let generation = self.youngest(&list) + 1;
        self.entered[task].0.store(generation, Ordering::Relaxed);
        let older = list.youngest.replace(task);
        list.nodes[task] = Node { generation, older, younger: None };
        if let Some(older) = older {
            list.nodes[older].younger = Some(task);
        }
    }

    fn exit(&self, task: usize) {
        let mut list = self.list();
        let Node { generation, older, younger } = std::mem::take(&mut list.nodes[task]);
        match younger {
            Some(younger) => list.nodes[younger].older = older,
            None => list.youngest = older,
        }
        match older {
            Some(older) => {
                list.nodes[older].younger = younger;
                list.nodes[older].generation = generation;
            }
            None => {
                self.left.store(generation, Ordering::Release);
                if list.sleepers > 0 {
                    self.grown.notify_all();
                }
            }
        }
    }

    fn stamp(&self, task: usize) -> Stamp {
        Stamp(self.entered[task].0.load(Ordering::Relaxed))
    }

    fn wait(&self) {
        let list = self.list();
        let generation = self.youngest(&list);
        self.sleep_until(list, generation);
    }

    fn wait_for(&self, Stamp(generation): Stamp) {
        if self.left.load(Ordering::Acquire) < generation {
            self.sleep_until(self.list(), generation);
        }
    }
}
