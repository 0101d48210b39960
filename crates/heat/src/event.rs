// SPDX-License-Identifier: Apache-2.0
//! What is sampled: the kernel's CPU clock, or an event of a PMU that tells the addresses of data.

use nix::errno::Errno;
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

/// An event of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub(crate) attr: perf_event_attr,
    /// Bytes of the buffer into which the PMU itself writes; 0 if there is none.
    pub(crate) aux: usize,
}

impl Event {
    /// Samples once for each `period` of CPU time.
    pub fn cpu_clock(period: Duration) -> Event {
        let mut attr = perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_CPU_CLOCK.into(),
            sample_type: bindings::PERF_SAMPLE_IP.into(),
            ..perf_event_attr::default()
        };
        attr.__bindgen_anon_1.sample_period = nanoseconds(period);
        attr.set_exclude_hv(1);
        Event { attr, aux: 0 }
    }

    /// Samples the address of the instruction and that of its data, `frequency` times a second of CPU time.
    pub fn addresses(mut attr: perf_event_attr, frequency: u64) -> Event {
        attr.sample_type = u64::from(bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_ADDR);
        attr.set_freq(1);
        attr.__bindgen_anon_1.sample_freq = frequency;
        Event { attr, aux: 0 }
    }

    /// Has the PMU write what it samples, one of `period` operations, into a buffer of `aux` bytes. It begins when the buffer is
    /// there: before, the kernel has no place for it (arm_spe_pmu.c in Linux).
    pub fn packets(mut attr: perf_event_attr, period: u64, aux: usize) -> Event {
        attr.sample_type = bindings::PERF_SAMPLE_IP.into();
        attr.__bindgen_anon_1.sample_period = period;
        attr.set_disabled(1);
        Event { attr, aux }
    }

    /// Sets the CPU time between two samples of the CPU clock, for what is opened from now on.
    pub(crate) fn set_period(&mut self, period: Duration) {
        self.attr.__bindgen_anon_1.sample_period = nanoseconds(period);
    }

    /// Opens it for a thread (perf_event_open(2)).
    pub(crate) fn open(&self, thread: i32, user_only: bool) -> Result<OwnedFd, Errno> {
        let mut attr = self.attr;
        attr.size = size_of::<perf_event_attr>() as u32;
        attr.set_exclude_kernel(user_only.into());
        let flags = u64::from(bindings::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: perf_event_open(2): attr is live and holds its size; the result is a new file.
        unsafe {
            let fd = perf_event_open_sys::perf_event_open(&raw mut attr, thread, -1, -1, flags);
            if fd < 0 {
                return Err(Errno::last());
            }
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

pub(crate) fn nanoseconds(period: Duration) -> u64 {
    u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)
}
