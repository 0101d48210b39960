// SPDX-License-Identifier: Apache-2.0
//! What is known of one process of a set.

use super::process::Image;
use hugelift_core::proc_stat::{Addresses, Stat};
use std::time::{Duration, Instant};

/// When a process was started, and where the kernel has put its program.
pub(super) type Life = (u64, Option<Addresses>);

/// A process of the set.
#[derive(Debug)]
pub(super) struct Member {
    pub parent: u32,
    /// When it was started, in clock ticks since boot: distinguishes it from a later one with its id.
    pub start: u64,
    /// Where the kernel has put its program: changed by execve(2).
    pub addresses: Option<Addresses>,
    pub image: Image,
    /// Its CPU time so far, and what of it was before it ran this image.
    pub cpu: Duration,
    pub cpu_before: Duration,
    /// CPU time of its lifts.
    pub spent: Duration,
    /// Bytes of anonymous copies that its lifts have made.
    pub copied: u64,
    pub is_parent: bool,
    pub told: Told,
    /// Something of it was lifted.
    pub is_lifted: bool,
    pub state: State,
    /// How often it could not be lifted.
    pub refusals: u32,
    /// How many checks in a row have found nothing to lift.
    pub fruitless: u32,
}

/// What a user has been told of a process since its execve(2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Told {
    /// It was checked.
    pub is_known: bool,
    /// Since then a lift of it has failed, or was not complete: its threads may have done more than is known.
    pub is_unclear: bool,
    /// Bytes on huge pages that were found last.
    pub huge: u64,
}

/// What is known about the lift of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It was not checked yet.
    New,
    /// A lift is worth it when its account affords this much.
    Wants(Duration),
    /// All that can be lifted is lifted. It had this much code mapped, in bytes.
    Lifted { code: u64 },
    /// It could not be lifted, and is tried again at this time.
    Refused { again: Instant },
}

impl Member {
    /// Returns a process of which nothing is known yet.
    pub(super) fn new(stat: &Stat, image: Image) -> Member {
        Member {
            parent: stat.parent,
            start: stat.start,
            addresses: stat.addresses,
            image,
            cpu: Duration::ZERO,
            cpu_before: Duration::ZERO,
            spent: Duration::ZERO,
            copied: 0,
            is_parent: false,
            told: Told::default(),
            is_lifted: false,
            state: State::New,
            refusals: 0,
            fruitless: 0,
        }
    }
}
