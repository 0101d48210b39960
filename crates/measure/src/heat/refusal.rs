// SPDX-License-Identifier: Apache-2.0
//! Why a process cannot be sampled.

use hugelift_linux::proc::procfs::ProcError;
use nix::errno::Errno;

/// The setting that decides who may sample.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The largest value of the setting with which users may sample their own processes.
const OWN: i64 = 2;

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel does not permit it.
    #[error("{}", denied(*errno, *paranoid))]
    Denied {
        /// The kernel's answer.
        errno: Errno,
        /// The value of kernel.perf_event_paranoid, if it can be read.
        paranoid: Option<i64>,
    },
    /// The limit of open files is reached.
    #[error("sampling needs a file for each thread, more than 'ulimit -n' allows")]
    Files,
    /// There is no thread.
    #[error("the process has ended")]
    Ended,
    /// The process cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// Anything else.
    #[error("perf_event_open: {0}")]
    Os(Errno),
}

impl Refusal {
    /// Explains an answer of the kernel.
    pub(super) fn of(errno: Errno) -> Refusal {
        match errno {
            Errno::EACCES | Errno::EPERM | Errno::ENOSYS => {
                let paranoid = std::fs::read_to_string(PARANOID).ok();
                let paranoid = paranoid.and_then(|text| text.trim().parse().ok());
                Refusal::Denied { errno, paranoid }
            }
            Errno::EMFILE | Errno::ENFILE => Refusal::Files,
            other => Refusal::Os(other),
        }
    }
}

/// Says in one line what forbids sampling, and what helps.
fn denied(errno: Errno, paranoid: Option<i64>) -> String {
    match paranoid {
        _ if errno == Errno::ENOSYS => {
            "perf_event_open: ENOSYS: a seccomp filter, as of a container, or this kernel does without it"
                .into()
        }
        Some(value) if value > OWN => format!(
            "kernel.perf_event_paranoid is {value}, with which only root may sample: \
             sysctl kernel.perf_event_paranoid={OWN} permits it for your own processes"
        ),
        Some(value) => format!(
            "perf_event_open: {}: kernel.perf_event_paranoid is {value}, which permits it for your own processes; \
             for others' be their user or root; in a container a seccomp filter may forbid it (CAP_PERFMON helps)",
            name(errno)
        ),
        None => format!(
            "perf_event_open: {}: kernel.perf_event_paranoid cannot be read; be root, or see whether a seccomp filter \
             forbids it",
            name(errno)
        ),
    }
}

fn name(errno: Errno) -> &'static str {
    if errno == Errno::EPERM { "EPERM" } else { "EACCES" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_a_refusal_names_the_setting_and_its_value() {
        let says = |errno, paranoid| Refusal::Denied { errno, paranoid }.to_string();
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
        assert!(says(Errno::ENOSYS, Some(2)).contains("seccomp"));
        assert!(says(Errno::EACCES, None).contains("kernel.perf_event_paranoid cannot be read"));
        for errno in [Errno::EACCES, Errno::EPERM, Errno::ENOSYS] {
            for paranoid in [None, Some(-1), Some(2), Some(4)] {
                assert!(!says(errno, paranoid).contains('\n'));
            }
        }
        assert!(matches!(Refusal::of(Errno::EMFILE), Refusal::Files));
        assert!(matches!(Refusal::of(Errno::EINVAL), Refusal::Os(_)));
    }
}
