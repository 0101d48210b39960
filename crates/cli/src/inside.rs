// SPDX-License-Identifier: Apache-2.0
//! `hugelift inside PID FD`: what the library in a child of a lifted program starts, to have it
//! lifted. Not for people.

use crate::{FAILED, log};
use hugelift_lift::Failure;
use hugelift_lift::child::lift_child;
use hugelift_os::io::console::say;
use std::ffi::OsString;
use std::os::fd::RawFd;

/// Lifts the process that has started this one; returns the exit status.
pub fn inside(args: &[OsString]) -> i32 {
    let lifted = log::start()
        .map_err(Failure::from)
        .and_then(|()| numbers(args))
        .and_then(|(pid, fd)| lift_child(pid, fd));
    match lifted {
        Ok(()) => 0,
        Err(failure) => {
            say(&failure.message);
            failure.status
        }
    }
}

fn numbers(args: &[OsString]) -> Result<(i32, RawFd), Failure> {
    let numbers: Vec<i32> = args.iter().filter_map(|a| a.to_str()?.parse().ok()).collect();
    match numbers.as_slice() {
        &[pid, fd] => Ok((pid, fd)),
        _ => Err(Failure { status: FAILED, message: format!("inside {args:?}: wants PID and FD") }),
    }
}
