// SPDX-License-Identifier: Apache-2.0
//! How much memory of a process is on huge pages, from /proc/PID/smaps_rollup (proc_pid_smaps(5)).

use hugelift_core::fields::bytes_of;
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;

/// Bytes of a process on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Of anonymous memory (`AnonHugePages`).
    pub anonymous: u64,
    /// Of memory that may be shared (`ShmemPmdMapped`).
    pub shared: u64,
}

impl Memory {
    /// Reads it; `None` if the process has ended, or may not be read.
    pub fn read(pid: u32) -> Option<Memory> {
        Some(Memory::parse(&Process::new(pid).read("smaps_rollup").ok()?))
    }

    fn parse(text: &[u8]) -> Memory {
        let text = text_to_parse(text);
        let of = |key: &str| bytes_of(&text, key).unwrap_or(0);
        Memory { anonymous: of("AnonHugePages"), shared: of("ShmemPmdMapped") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_2_the_sums_are_read() {
        let text = b"1-2 ---p 0 00:00 0 [rollup]\nRss:  9 kB\nAnonHugePages:      2048 kB\nShmemPmdMapped:    4096 kB\n";
        assert_eq!(Memory::parse(text), Memory { anonymous: 2 << 20, shared: 4 << 20 });
        assert_eq!(Memory::parse(b"AnonHugePages: x kB\n\xff\n"), Memory::default());
        assert!(Memory::read(std::process::id()).is_some());
        assert_eq!(Memory::read(1 << 23), None);
    }
}
