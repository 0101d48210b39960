// SPDX-License-Identifier: Apache-2.0
//! `hugelift inside PID FD`: what the library in a child of a lifted program starts, to have it
//! lifted. Not for people.

use crate::FAILED;

use crate::log;
use hugelift_lift::Failure;
use hugelift_lift::job::LiftJob;
use hugelift_os::io::console::say;
use hugelift_os::launch::inside;
use std::ffi::OsString;
use std::path::Path;

/// Lifts the process that has started this one.
pub fn inside(args: &[OsString]) -> i32 {
    match try_inside(args) {
        Ok(()) => 0,
        Err(error) => {
            say(&error.message);
            error.status
        }
    }
}

fn try_inside(args: &[OsString]) -> Result<(), Failure> {
    log::start()?;
    let numbers: Vec<i32> = args.iter().filter_map(|a| a.to_str()?.parse().ok()).collect();
    let &[pid, fd] = numbers.as_slice() else {
        return Err(Failure { status: FAILED, message: format!("inside {args:?}: wants PID and FD") });
    };
    let mut words = inside::children_options()?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = exe.file_name().map(Path::new).unwrap_or(Path::new("a child"));
    words.push("--".to_string());
    let words = words.into_iter().map(OsString::from).chain([name.into()]);
    let options = crate::run_options(words).map_err(|e| e.to_string())?;
    let mut job = &mut LiftJob::of_child(&options)?;
    Ok(inside::help(pid, fd, &mut job)?)
}
