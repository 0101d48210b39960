// SPDX-License-Identifier: Apache-2.0
//! What came of collapsing the memory of a process, and how it is said.

use super::choose::Left;
use super::why::Why;
use crate::addr::human_bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Why not all chosen blocks were tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// The CPU time that was allowed is used up.
    Cpu(Duration),
    /// A control group leaves the process too little memory: the file with the limit, and the bytes left.
    Group(String, u64),
    /// So many bytes, which another control group was charged for before, are charged to the limit of the process's, in this
    /// file.
    Charged(String, u64),
    /// The kernel has no free huge page, or may not charge one: what it returned.
    Short(String),
    /// The process has ended, or has become another program by execve(2).
    Gone,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Cpu(cpu) => write!(f, "the {} of CPU time that it may take are used up", millis(*cpu)),
            Stopped::Group(file, left) => {
                write!(f, "{file} leaves the process only {} of memory", human_bytes(*left))
            }
            Stopped::Charged(file, bytes) => write!(
                f,
                "{} that another control group was charged for count against {file} now; --spare says how much the process can \
                 do without",
                human_bytes(*bytes)
            ),
            Stopped::Short(error) => write!(f, "the kernel found no memory for a huge page: {error}"),
            Stopped::Gone => f.write_str("the process has ended or has called execve(2)"),
        }
    }
}

/// The page tables of the processes that share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageTables {
    /// How many processes have pages of it, as far as that can be read.
    pub processes: usize,
    /// Bytes of all their page tables (`VmPTE`) before.
    pub before: u64,
    /// Bytes of them afterwards.
    pub after: u64,
}

/// What came of collapsing the memory of a process. `Display` says it in lines of text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Collapsed {
    /// Bytes that were asked for.
    pub tried: u64,
    /// Bytes of them that huge pages map afterwards, by what the kernel shows.
    pub huge: u64,
    /// Bytes of `huge` that are shared memory.
    pub shared: u64,
    /// The page tables of all that share it, if any shared memory became huge.
    pub tables: Option<PageTables>,
    /// Bytes of memory that these blocks have added.
    pub added: u64,
    /// CPU time of the caller; time of the clock if a thread of the process did it.
    pub cpu: Duration,
    /// What the kernel returned for blocks that it did not collapse, and for how many blocks.
    pub errors: BTreeMap<String, u64>,
    /// Why the other chosen blocks were not tried, and their bytes.
    pub stopped: Option<(Stopped, u64)>,
    /// The heat of blocks decided on their order.
    pub by_heat: bool,
    /// What was not chosen.
    pub left: Vec<Left>,
}

impl Collapsed {
    /// Returns the bytes that were left for each reason, and what they would have added.
    pub fn left_by_reason(&self) -> BTreeMap<Why, (u64, u64)> {
        let mut sums: BTreeMap<Why, (u64, u64)> = BTreeMap::new();
        for left in &self.left {
            let (bytes, adds) = sums.entry(left.why).or_default();
            *bytes = bytes.saturating_add(left.range.len());
            *adds = adds.saturating_add(left.adds);
        }
        sums
    }
}

impl fmt::Display for Collapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.by_heat { "the hottest first" } else { "the densest first" };
        let (huge, cpu) = (human_bytes(self.huge), millis(self.cpu));
        let kind = match self.shared {
            0 if self.huge == 0 => "memory",
            0 => "anonymous memory",
            shared if shared == self.huge => "shared memory",
            _ => "memory",
        };
        write!(
            f,
            "{huge} of {kind} is on huge pages now, {order}; it added {} and took {cpu} of CPU time",
            human_bytes(self.added)
        )?;
        if self.shared > 0 && self.shared < self.huge {
            write!(f, "\n{} of it is shared memory", human_bytes(self.shared))?;
        }
        if let Some(PageTables { processes, before, after }) = self.tables {
            let [before, after] = [before, after].map(human_bytes);
            match processes {
                0 | 1 => write!(f, "\nits page tables had {before} before and have {after} now")?,
                n => write!(
                    f,
                    "\nthe page tables of the {n} processes that share it had {before} before and have {after} now"
                )?,
            }
        }
        if self.huge < self.tried {
            let missing = human_bytes(self.tried - self.huge);
            write!(f, "\n{missing} more was tried and is not huge")?;
            for (error, count) in &self.errors {
                let blocks = if *count == 1 { "block" } else { "blocks" };
                write!(f, "\n  {count} {blocks}: madvise(MADV_COLLAPSE): {error}")?;
            }
        }
        if let Some((why, bytes)) = &self.stopped {
            write!(f, "\n{} was not tried: {why}", human_bytes(*bytes))?;
        }
        for (why, (bytes, adds)) in self.left_by_reason() {
            write!(f, "\n{} is left: {why}", human_bytes(bytes))?;
            if why == Why::OverBudget {
                write!(f, " (it would add {})", human_bytes(adds))?;
            }
        }
        Ok(())
    }
}

/// Formats a time as people read it: `31 ms`, `1500 ms`, `0.4 ms`.
fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}
