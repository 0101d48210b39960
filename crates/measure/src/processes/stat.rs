// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/stat` (proc_pid_stat(5)): the fields that tell what a process does.

use hugelift_core::printable::Untrusted;

/// What the kernel counts of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its id.
    pub pid: u32,
    /// Its name, of 15 bytes at most; what is not UTF-8 is replaced.
    pub comm: Untrusted,
    /// `R`, `S`, `Z`...
    pub state: char,
    /// When it was started: clock ticks since boot.
    pub start: u64,
    /// CPU time of all its threads, user and system: clock ticks.
    pub cpu: u64,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Size of its address space in bytes: 0 for kernel threads and zombies.
    pub virtual_bytes: u64,
}

impl Stat {
    /// What tells it from another process that gets its id later.
    pub fn identity(&self) -> (u32, u64) {
        (self.pid, self.start)
    }
}

/// Reads the one line of `/proc/PID/stat`; `None` if it is not as proc_pid_stat(5) says.
pub fn parse_stat(line: &[u8]) -> Option<Stat> {
    // The name is in brackets, and may hold any byte, also brackets and newlines.
    let open = line.iter().position(|&b| b == b'(')?;
    let close = line.iter().rposition(|&b| b == b')').filter(|close| *close > open)?;
    let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
    let comm = Untrusted::from(&line[open + 1..close]);
    let fields: Vec<&str> = std::str::from_utf8(&line[close + 1..]).ok()?.split_ascii_whitespace().collect();
    // The page counts from 1, and the state is its third.
    let field = |number: usize| fields.get(number - 3).copied();
    let count = |number| field(number)?.parse::<u64>().ok();
    Some(Stat {
        pid,
        comm,
        state: field(3)?.chars().next()?,
        start: count(22)?,
        cpu: count(14)?.saturating_add(count(15)?),
        minor_faults: count(10)?,
        major_faults: count(12)?,
        virtual_bytes: count(23)?,
    })
}

/// Pages of code in the executable, from the one line of `/proc/PID/statm` (proc_pid_statm(5)).
pub fn parse_statm_text(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REAL: &str = "4242 (a) (b\n) S 1 4242 4242 0 -1 4194560 1500 90 7 2 130 20 5 6 20 0 3 0 881 \
        1234567168 2500 18446744073709551615 1 1 0 0 0 0 0 16781312 134234626 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_line_with_a_name_that_looks_like_fields() {
        let stat = parse_stat(REAL.as_bytes()).unwrap();
        assert_eq!((stat.pid, stat.comm.to_string().as_str(), stat.state), (4242, "a) (b\\n", 'S'));
        assert_eq!((stat.start, stat.cpu, stat.minor_faults, stat.major_faults), (881, 150, 1500, 7));
        assert_eq!(stat.virtual_bytes, 1234567168);
        assert_eq!(parse_statm_text(b"8371 1009 811 66 0 412 0\n"), Some(66));
    }

    #[test]
    fn what_is_cut_short_is_nothing() {
        for cut in 0..REAL.find("1234567168").unwrap() {
            assert_eq!(parse_stat(&REAL.as_bytes()[..cut]), None, "{cut}");
        }
        assert_eq!(parse_statm_text(b"1 2 3"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..200) {
            let _ = parse_stat(&bytes);
            let _ = parse_statm_text(&bytes);
            let mut damaged = REAL.as_bytes().to_vec();
            let at = at.min(damaged.len());
            damaged.splice(at.., bytes);
            let _ = parse_stat(&damaged);
        }
    }
}
