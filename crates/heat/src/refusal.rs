// SPDX-License-Identifier: Apache-2.0
//! Why events cannot be counted or sampled, and what helps.

use nix::errno::Errno;

/// The setting that decides who may count and sample.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The largest value of the setting with which users may observe their own processes.
const OWN: i64 = 2;

/// Why perf_event_open(2) refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PerfError {
    /// The kernel has no such PMU or event.
    #[error("this machine has no PMU, like most guests (the host must pass one on: qemu -cpu host,pmu=on)")]
    NoPmu,
    /// The kernel does not permit it.
    #[error("{}", denied(*errno, *paranoid))]
    Denied {
        /// The kernel's answer.
        errno: Errno,
        /// The value of kernel.perf_event_paranoid, if it can be read.
        paranoid: Option<i64>,
    },
    /// The kernel does not have the system call, or a filter says so.
    #[error(
        "perf_event_open: ENOSYS: a seccomp filter, as of a container, forbids it, or this kernel lacks it"
    )]
    NoCall,
    /// The threads need more files than the limit of open files.
    #[error("{threads} threads need more open files than 'ulimit -n' allows")]
    Files {
        /// Threads of the process.
        threads: usize,
    },
    /// All threads have ended.
    #[error("the process has ended")]
    Vanished,
    /// Anything else.
    #[error("perf_event_open: {0}")]
    Os(Errno),
}

impl PerfError {
    /// Explains an answer of the kernel to an event for one of `threads` threads.
    pub fn of(errno: Errno, threads: usize) -> PerfError {
        match errno {
            Errno::EACCES | Errno::EPERM => {
                let paranoid = std::fs::read_to_string(PARANOID).ok();
                PerfError::Denied { errno, paranoid: paranoid.and_then(|text| text.trim().parse().ok()) }
            }
            Errno::ENOSYS => PerfError::NoCall,
            Errno::EMFILE | Errno::ENFILE => PerfError::Files { threads },
            other => PerfError::Os(other),
        }
    }
}

/// Says in one line what forbids it, and what helps.
fn denied(errno: Errno, paranoid: Option<i64>) -> String {
    let name = if errno == Errno::EPERM { "EPERM" } else { "EACCES" };
    match paranoid {
        Some(value) if value > OWN => format!(
            "kernel.perf_event_paranoid is {value}, with which only root may use perf_event_open: \
             sysctl kernel.perf_event_paranoid={OWN} permits it for your own processes"
        ),
        Some(value) => format!(
            "perf_event_open: {name}: kernel.perf_event_paranoid is {value}, which permits it for your own processes; \
             for others' be their user or root; in a container a seccomp filter may forbid it (CAP_PERFMON helps)"
        ),
        None => format!(
            "perf_event_open: {name}: kernel.perf_event_paranoid cannot be read; be root, or see whether a seccomp \
             filter forbids it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_a_refusal_names_the_setting_and_its_value() {
        let says = |errno, paranoid| PerfError::Denied { errno, paranoid }.to_string();
        for value in [3, 4] {
            let line = says(Errno::EACCES, Some(value));
            assert!(line.starts_with(&format!("kernel.perf_event_paranoid is {value}, ")), "{line}");
            assert!(line.contains("sysctl kernel.perf_event_paranoid=2"), "{line}");
        }
        let line = says(Errno::EPERM, Some(2));
        assert!(
            line.contains("EPERM: kernel.perf_event_paranoid is 2") && line.contains("seccomp"),
            "{line}"
        );
        assert!(says(Errno::EACCES, None).contains("kernel.perf_event_paranoid cannot be read"));
        for errno in [Errno::EACCES, Errno::EPERM, Errno::ENOSYS, Errno::EMFILE] {
            for paranoid in [None, Some(-1), Some(2), Some(4)] {
                assert!(!says(errno, paranoid).contains('\n'));
            }
            assert!(!PerfError::of(errno, 3).to_string().contains('\n'));
        }
        assert_eq!(PerfError::of(Errno::ENOSYS, 3), PerfError::NoCall);
        assert!(PerfError::NoCall.to_string().contains("seccomp"));
        assert_eq!(PerfError::of(Errno::EMFILE, 3), PerfError::Files { threads: 3 });
        assert_eq!(PerfError::of(Errno::EINVAL, 3), PerfError::Os(Errno::EINVAL));
    }
}
