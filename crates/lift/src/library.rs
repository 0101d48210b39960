// SPDX-License-Identifier: Apache-2.0
//! Makes the program load hugelift's library if its children are to be lifted or its data is to be on
//! pages of the pool.

use crate::Failure;
use crate::job::LiftJob;
use crate::memory_limit::reserved;
use crate::options::{Children, StartOptions, Verbosity};
use hugelift_core::addr::PageSize;
use hugelift_core::snapshot::Part;
use hugelift_os::launch::helper::Verdict;
use hugelift_os::launch::inside::Inside;
use hugelift_os::machine::thp_page;
use std::path::Path;

/// Sets the variables for the program at `path`, and says where that cannot be done.
///
/// # Errors
/// setenv(3) fails.
pub(crate) fn preload(options: &StartOptions, job: &mut LiftJob, path: &Path) -> Result<Verdict, Failure> {
    let (children, pool) = (options.children == Children::Lift, job.takes_data_from_pool());
    if !children && !pool {
        return Ok(Verdict::Start);
    }
    let library = Inside::for_program(path).map_err(|why| why.to_string());
    if children {
        // Each child has a helper for a moment, whose memory counts while the program runs.
        let refused = match (&library, reserved(&job.policy)) {
            (_, Some(why)) => Some(why),
            (Err(why), None) => Some(why.clone()),
            (Ok(library), None) => lift_children(job, library).map(|()| None)?,
        };
        match refused {
            Some(why) if options.lift.strict => return Ok(job.asked.refuse(&format!("--children: {why}"))),
            Some(why) => {
                let line = format!("its children are started without huge pages: {why}");
                job.asked.say(Verbosity::Problems, &line);
            }
            None => {}
        }
    }
    match library {
        Ok(library) if pool => {
            library.guard(options.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?;
        }
        Err(why) if pool => job.leave_pool(&why),
        _ => {}
    }
    Ok(Verdict::Start)
}

/// Sets the variables by which the library lifts the programs that this one will start, with the same
/// options.
fn lift_children(job: &LiftJob, library: &Inside) -> Result<(), Failure> {
    let parts = &job.policy.parts;
    // Heap and stack are advised in every program, however small it is.
    let any = parts.iter().any(|p| matches!(p, Part::Heap | Part::Stack));
    let page = job.policy.page.named().or(thp_page()).unwrap_or(PageSize::MB2);
    let writable = parts.iter().any(|p| p.is_writable());
    let worth = format!("{}{}", if any { 0 } else { page.bytes() }, if writable { "rw" } else { "r" });
    let options = job.asked.options.for_children().to_json();
    let options = options.map_err(|e| format!("cannot write the options of children: {e}"))?;
    library.lift_children(&worth, &options).map_err(|e| format!("cannot set a variable: {e}"))?;
    if job.asked.is_heard(Verbosity::Summary)
        && let Some(closed) = library.closed_to_others()
    {
        job.asked.say(Verbosity::Summary, &closed);
    }
    Ok(())
}
