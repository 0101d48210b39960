// SPDX-License-Identifier: Apache-2.0
//! `hugelift inside PID FD`: lifts a child of a lifted program. The library in the child starts it;
//! users do not.

use crate::failure::{Exit, Failure};
use hugelift_lift::child::lift_child;
use std::ffi::OsString;
use std::os::fd::RawFd;

/// Lifts the process that has started this one.
///
/// # Errors
/// The process cannot be lifted.
pub fn run(args: &[OsString]) -> Result<Exit, Failure> {
    let (pid, fd) = numbers(args)?;
    lift_child(pid, fd)?;
    Ok(Exit::SUCCESS)
}

fn numbers(args: &[OsString]) -> Result<(i32, RawFd), Failure> {
    let numbers: Vec<i32> = args.iter().filter_map(|a| a.to_str()?.parse().ok()).collect();
    match numbers.as_slice() {
        &[pid, fd] => Ok((pid, fd)),
        _ => Err(Failure::new(format!("inside {args:?}: wants PID and FD"))),
    }
}
