// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/status`.

use hugelift_core::fields::kilobytes;

/// The lines of `/proc/PID/status` that matter here; `None` where the kernel has no such line.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Status {
    /// `Uid`, the effective one.
    pub uid: Option<u32>,
    /// `Uid`, the real one: whoever has started it, also if its program has the set-user-ID bit.
    pub real_uid: Option<u32>,
    /// `THP_enabled`: false after `prctl(PR_SET_THP_DISABLE)` (Linux 5.0).
    pub thp_enabled: Option<bool>,
    /// `Threads`.
    pub threads: Option<u32>,
    /// `VmLck`, in bytes.
    pub locked: Option<u64>,
    /// `VmHWM`: the most that was resident since exec, in bytes. (`ru_maxrss` of getrusage(2)
    /// starts at the size of the process that called exec.)
    pub peak_bytes: Option<u64>,
    /// `VmPTE`: its page tables, in bytes.
    pub page_tables: Option<u64>,
    /// `RssShmem`: its resident shared memory, in bytes.
    pub shared: Option<u64>,
    /// `VmExe` and `VmLib`: the code that is mapped, in bytes.
    pub code: Option<u64>,
    /// `Tgid`: the process that the thread belongs to.
    pub process: Option<u32>,
    /// `TracerPid`: the thread that traces it; 0 for none.
    pub tracer: Option<u32>,
    /// `Seccomp`: 0 for none, 1 strict, 2 by filter.
    pub seccomp: Option<u32>,
    /// `Seccomp_filters`: how many are in force (Linux 5.9).
    pub seccomp_filters: Option<u32>,
    /// `CapEff`: the effective capabilities, one bit each.
    pub capabilities: Option<u64>,
    /// `SigPnd` and `ShdPnd`: pending signals of the thread and of the process, one bit each.
    pub pending: u64,
    /// `SigBlk`: the signals that the thread blocks, one bit each.
    pub blocked: u64,
    /// `SigCgt`: the signals for which the process has a handler, one bit each.
    pub caught: u64,
    /// `voluntary_ctxt_switches`: how often the thread went to sleep.
    pub sleeps: Option<u64>,
}

/// Parses the file. A line that cannot be read counts as absent.
pub(super) fn parse_status(text: &[u8]) -> Status {
    let mut status = Status::default();
    for line in text.split(|&b| b == b'\n') {
        let Some(colon) = line.iter().position(|&b| b == b':') else { continue };
        let value = || std::str::from_utf8(&line[colon + 1..]).ok()?.trim().parse::<u32>().ok();
        let hex = || u64::from_str_radix(std::str::from_utf8(&line[colon + 1..]).ok()?.trim(), 16).ok();
        let first = || std::str::from_utf8(&line[colon + 1..]).ok()?.split_whitespace().next()?.parse().ok();
        let second = || std::str::from_utf8(&line[colon + 1..]).ok()?.split_whitespace().nth(1)?.parse().ok();
        match &line[..colon] {
            b"Uid" => (status.real_uid, status.uid) = (first(), second()),
            b"THP_enabled" => status.thp_enabled = value().map(|v| v != 0),
            b"Threads" => status.threads = value(),
            b"VmLck" => status.locked = kilobytes(&line[colon + 1..]),
            b"VmHWM" => status.peak_bytes = kilobytes(&line[colon + 1..]),
            b"VmPTE" => status.page_tables = kilobytes(&line[colon + 1..]),
            b"RssShmem" => status.shared = kilobytes(&line[colon + 1..]),
            b"VmExe" | b"VmLib" => {
                status.code =
                    status.code.into_iter().chain(kilobytes(&line[colon + 1..])).reduce(|a, b| a + b);
            }
            b"Tgid" => status.process = value(),
            b"TracerPid" => status.tracer = value(),
            b"CapEff" => status.capabilities = hex(),
            b"SigPnd" | b"ShdPnd" => status.pending |= hex().unwrap_or(0),
            b"SigBlk" => status.blocked = hex().unwrap_or(0),
            b"SigCgt" => status.caught = hex().unwrap_or(0),
            b"voluntary_ctxt_switches" => status.sleeps = value().map(u64::from),
            b"Seccomp" => status.seccomp = value(),
            b"Seccomp_filters" => status.seccomp_filters = value(),
            _ => {}
        }
    }
    status
}
