// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/stat` (proc_pid_stat(5)), and the CPU time of all descendants of a process.

use anyhow::{Context as _, Result};
use hugelift_core::printable::text_to_parse;
use hugelift_os::proc::procfs::Process;
use std::collections::HashMap;

/// What `/proc/PID/stat` tells that matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its id.
    pub pid: u32,
    /// One letter: R, S, Z...
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// User and system time of its own and of the children it waited for, in clock ticks.
    pub ticks: u64,
}

impl Stat {
    /// Of a process.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(pid: u32) -> Result<Stat> {
        let text = Process::new(pid).read("stat")?;
        let text = text_to_parse(&text);
        parse(&text).with_context(|| format!("/proc/{pid}/stat: unexpected contents '{}'", text.trim()))
    }
}

/// The name in parentheses may hold anything, further parentheses too.
fn parse(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(") ")?;
    let pid = head.split_once(" (")?.0.parse().ok()?;
    let mut fields = tail.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Behind the parent come 9 fields, then utime, stime, cutime, cstime.
    let ticks: Option<Vec<u64>> = fields.skip(9).take(4).map(|field| field.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() == 4)?;
    Some(Stat { pid, state, parent, ticks: ticks.into_iter().fold(0, u64::saturating_add) })
}

/// Everything that descends from `root`, without it: parents before their children.
///
/// # Errors
/// /proc cannot be read.
pub fn descendants(root: u32) -> Result<Vec<Stat>> {
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").context("cannot read /proc")? {
        let name = entry.context("cannot read /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end meanwhile.
        if let Ok(stat) = Stat::read(pid) {
            children.entry(stat.parent).or_default().push(stat);
        }
    }
    let mut found: Vec<Stat> = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(stat) = found.get(next) {
        found.extend(children.remove(&stat.pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// CPU seconds, to a hundredth or so, of everything that descends from this process and
/// still runs, and of what that has waited for.
///
/// # Errors
/// /proc cannot be read.
pub fn cpu_of_descendants() -> Result<f64> {
    let ticks: u64 = descendants(std::process::id())?.iter().map(|stat| stat.ticks).sum();
    // SAFETY: sysconf(3) takes and returns plain numbers.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks as f64 / if hertz > 0 { hertz as f64 } else { 100.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = "42 (a) S 1 (b) R 7 42 42 0 -1 4194304 100 0 0 0 5 6 7 8 20 0 1 0 100 0 0";
        assert_eq!(parse(line), Some(Stat { pid: 42, state: 'R', parent: 7, ticks: 26 }));
        assert_eq!(parse("42 (x) R 7 1 2"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn own_children_are_found_with_theirs() {
        let _alone = crate::child::alone();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "exec 3<&0; cat <&3 & wait"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of_child = || descendants(child.id()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while of_child().is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (own, its) = (descendants(std::process::id()).unwrap(), of_child());
        assert!(own.iter().any(|s| s.pid == child.id()), "{own:?}");
        assert_eq!(its.len(), 1, "{its:?}");
        assert_eq!(its[0].parent, child.id());
        // Between the two readings it may have gone from running to sleeping.
        assert!(own.iter().any(|s| s.pid == its[0].pid), "{own:?} {its:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
