// SPDX-License-Identifier: Apache-2.0
//! What the model rests on, and where it differs from the measurements and the literature.

use super::models::{MODELS, locks};
use super::predicted::{Case, Check};
use super::published::{CPUS, LOCK, PEAK, TWO_SOCKETS, WITH_EPOCHS};
use crate::contention::{Costs, SPINS};
use crate::reclaim::measured::Measured;

/// A rate that is no less than this share of another one has not fallen.
const PLATEAU: f64 = 0.8;

/// Says why a scheme is not shown for more cores; `None` if it is shown or was not measured.
pub(super) fn suppressed(checks: &[Check], model: usize, disturbed: bool) -> Option<String> {
    let off = |check: &&Check| (check.predicted / check.measured).ln().abs();
    let worst = checks.iter().filter(|check| check.model == model && check.is_off());
    let worst = worst.max_by(|a, b| off(a).total_cmp(&off(b)))?;
    Some(format!(
        "the model predicts {:.2} M operations/s for {} with {} where {:.2} M were measured{}, so it is not \
         shown for more",
        worst.predicted / 1e6,
        if worst.tasks == 1 { "one task".into() } else { format!("{} tasks", worst.tasks) },
        MODELS[model].name,
        worst.measured / 1e6,
        if disturbed { " (disturbed)" } else { "" }
    ))
}

/// Says what a model of a lock lacks that does not fall where the source's does.
pub(super) fn plateau(cases: &[Case]) -> Option<String> {
    let flat = cases.iter().skip(1).flat_map(|case| {
        let all = locks().filter(|(model, _)| {
            let few = case.at(PEAK.0, *model);
            few.zip(case.at(CPUS, *model)).is_some_and(|(few, all)| all > PLATEAU * few)
        });
        all.map(|(_, model)| format!("'{}', transfers {}", model.name, case.transfers))
    });
    let flat: Vec<String> = flat.collect();
    (!flat.is_empty()).then(|| {
        format!(
            "the source's throughput with the lock falls from {} to {CPUS} CPUs, the model's does not ({}): its \
             waiters sleep, and a sleeper costs the others nothing; the model lacks what makes waking dearer with more \
             sleepers, such as the lock of the futex's queue and the run queues",
            PEAK.0,
            flat.join("; ")
        )
    })
}

/// Says what the model rests on: the measured costs, its rules, and the figures of the literature.
pub(super) fn notes(costs: &Costs, measured: &Measured) -> [String; 4] {
    let unmapping = measured.unmapping.map_or(String::new(), |work| {
        format!(", mapping and unmapping 128 MB without touching it {work:.0} ns")
    });
    let costs = format!(
        "the costs in the model, measured here: a cache line from core to core {:.0} ns, an atomic operation {:.1} ns, \
         taking and releasing the lock {:.1} ns (the spinning one {:.1}), a round of spinning {:.1} ns, waking a \
         sleeper {:.0} ns and {:.0} ns until it runs, the same system calls without a sleeper {:.0} and {:.0} ns, work \
         {:.0} ns{unmapping}; nothing of the literature's throughput goes into the model",
        costs.transfer.within,
        costs.atomic,
        costs.held,
        costs.held_spinning,
        costs.pause,
        costs.wake,
        costs.awake,
        costs.wake_nobody,
        costs.refused,
        costs.work
    );
    let transfers = format!(
        "transfers as published: {:.0} ns within a socket and {:.0} ns between two, medians of two Xeon Platinum \
         8275CL with {CPUS} CPUs (github.com/nviennot/core-to-core-latency); the source does not name its machine",
        TWO_SOCKETS.within, TWO_SOCKETS.between
    );
    let rules = format!(
        "the rules of the model, from the literature: a line goes to one core at a time, and handing over a lock \
         brings it to all spinning waiters (Boyd-Wickizer and others, \"Non-scalable locks are dangerous\", 2012); a \
         core keeps a line until a request reaches it, and so can take its lock again before another (Radović and \
         Hagersten, 2003); a waiter for this library's lock spins {SPINS} times, then sleeps (futex(2)); in a \
         kernel it spins on"
    );
    let literature = format!(
        "the source (M. Macy, scalebsd.org, May 2018): FreeBSD, mmap1_processes of will-it-scale, {:.3} M operations/s \
         on {CPUS} CPUs with the lock, {:.3} M with epochs: 252.0 % ± 1.1 % more at 95 % confidence; with the lock the \
         maximum is {:.3} M with {} processes. FreeBSD took its lock for each munmap(2) of each process, Linux has no \
         such lock. FreeBSD replaced the lock by the lock-free list in 2019 (r347695, review D19630)",
        LOCK / 1e6,
        WITH_EPOCHS / 1e6,
        PEAK.1 / 1e6,
        PEAK.0
    );
    [costs, transfers, rules, literature]
}
