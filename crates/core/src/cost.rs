// SPDX-License-Identifier: Apache-2.0
//! Whether huge pages stall a process: what its threads waited for, and what the machine did for huge pages meanwhile.
//!
//! | module | holds |
//! |---|---|
//! | [`taskstats`] | what the kernel counted of the threads of a process |
//! | [`counters`] | what it counted of the machine |
//! | [`verdict`] | what follows, in a sentence |

pub mod counters;
pub mod taskstats;
pub mod verdict;

use crate::printable::Untrusted;
use counters::Counters;
use serde::Serialize;
use taskstats::Waits;

/// Version of the JSON schema.
pub const VERSION: u32 = 1;

/// What was seen of a process in some time, which is also the JSON output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cost {
    /// [`VERSION`].
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: Untrusted,
    /// What can be said.
    pub verdict: Verdict,
    /// The verdict in a sentence.
    pub says: String,
    /// How long it was watched.
    pub milliseconds: u64,
    /// Whether it ended meanwhile.
    pub ended: bool,
    /// The process's own: what its threads waited for; `None` if that is unknown.
    pub waits: Option<Waits>,
    /// Whether the kernel counted the waits.
    pub counted: Counted,
    /// Why waits are unknown, or some of them may be, and what helps.
    pub note: Option<String>,
    /// The process's own: what is counted of it besides.
    pub process: OfProcess,
    /// The machine's: counters of `/proc/vmstat`, of all processes.
    pub machine: Counters,
    /// The machine's: memory that it zeroed at page faults that got huge pages, in bytes.
    pub machine_zeroed_bytes: Option<u64>,
}

/// What can be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Its threads waited for compaction or direct reclaim.
    Stalls,
    /// They did, for less than a thousandth of the time.
    Hardly,
    /// They did not.
    None,
    /// The figures do not say.
    CannotTell,
}

/// Whether the kernel counted what threads waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// Of all threads.
    All,
    /// Perhaps not of the threads that are older than the setting.
    PerhapsSome,
    /// Of none, or it is unknown.
    No,
}

/// What is counted of one process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct OfProcess {
    /// The threads that it has.
    pub threads: u64,
    /// CPU time that it used, in milliseconds.
    pub cpu_milliseconds: u64,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that needed a disk.
    pub major_faults: u64,
    /// Its anonymous memory on huge pages at the beginning, in bytes; `None` if that may not be read.
    pub huge_bytes_before: Option<u64>,
    /// The same at the end.
    pub huge_bytes: Option<u64>,
    /// The most memory that was zeroed for it at page faults that got huge pages, in bytes: the machine's figure, or less
    /// if it had fewer page faults.
    pub zeroed_bytes_at_most: Option<u64>,
}
