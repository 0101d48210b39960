// SPDX-License-Identifier: Apache-2.0
//! The helper of a child of a lifted program. The library in the child starts it.

use crate::Failure;
use crate::asked::Asked;
use crate::job::LiftJob;
use crate::options::LiftOptions;
use hugelift_os::launch::inside::{self, CHILDREN};
use std::os::fd::RawFd;
use std::path::Path;

/// Lifts the process `pid`, which waits at the other end of the socket `fd`.
///
/// # Errors
/// The options in the environment cannot be read, or `fd` is no such socket.
pub fn lift_child(pid: i32, fd: RawFd) -> Result<(), Failure> {
    let json = inside::children_options()?;
    let options = LiftOptions::from_json(&json).map_err(|e| format!("{CHILDREN}: {e}"))?;
    let policy = options.policy.policy().map_err(|e| format!("{CHILDREN}: {e}"))?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = exe.file_name().map(Path::new).unwrap_or(Path::new("a child"));
    let asked = Asked { program: name.into(), options, report: None };
    Ok(inside::help(pid, fd, &mut LiftJob::new(asked, policy, true))?)
}
