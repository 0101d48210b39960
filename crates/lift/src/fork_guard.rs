// SPDX-License-Identifier: Apache-2.0
//! Makes the program load the fork guard if its data is to be on pages of the pool.

use crate::Failure;
use crate::job::LiftJob;
use crate::launch::guard_file::GuardFile;
use crate::options::StartOptions;
use std::path::Path;

/// Sets the variables for the program at `path`, whose data is to be on pages of the pool.
///
/// # Errors
/// setenv(3) fails.
pub(crate) fn request(options: &StartOptions, job: &mut LiftJob, path: &Path) -> Result<(), Failure> {
    if !job.takes_data_from_pool() {
        return Ok(());
    }
    match GuardFile::for_program(path) {
        Ok(library) => {
            library.guard(options.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?;
        }
        Err(why) => job.leave_pool(&why.to_string()),
    }
    Ok(())
}

/// Removes the variables again, for a program that is started plainly.
///
/// # Errors
/// setenv(3) fails.
pub(crate) fn withdraw() -> Result<(), Failure> {
    Ok(GuardFile::withdraw().map_err(|e| format!("cannot set a variable: {e}"))?)
}
