// SPDX-License-Identifier: Apache-2.0
//! The Yama security module's restriction of ptrace(2)
//! (Documentation/admin-guide/LSM/Yama.rst).

use std::io;

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Returns `kernel.yama.ptrace_scope`; 0 where there is no Yama.
pub fn scope() -> u32 {
    std::fs::read_to_string(SCOPE).ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0)
}

/// Returns what forbids tracing, as far as can be seen, and what would allow it.
pub fn hint(error: &io::Error) -> String {
    match (scope(), error.raw_os_error()) {
        (scope @ 2.., _) => {
            format!("kernel.yama.ptrace_scope is {scope}; echo 1 > /proc/sys/kernel/yama/ptrace_scope")
        }
        (_, Some(libc::EIO)) => "its file cannot be read by its user; chmod a+r, or run as root".into(),
        _ => "a seccomp filter, a security module or another tracer forbids it; \
              in a container add the capability SYS_PTRACE"
            .into(),
    }
}
