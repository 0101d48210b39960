// SPDX-License-Identifier: Apache-2.0
//! Collapses the anonymous memory of a running process, from outside or by a thread of its own ([`crate::watcher::collapse`]).

use super::change::{Change, millis, report};
use super::chosen::Chosen;
use super::open::{in_tracer, open, read_process};
use crate::options::Seccomp;
use crate::watcher::collapse::{Refused, collapse, collapse_by, leave_out};
use crate::watcher::process::Program;
use hugelift_core::addr::Range;
use hugelift_core::collapse::{Budget, Collapsed};
use hugelift_core::plan::plan;
use hugelift_core::policy::Policy;
use hugelift_core::snapshot::Part;
use hugelift_core::target::{Fault, Target as _};
use hugelift_inject::live::Stops;
use hugelift_linux::proc::snapshot;
use std::io;
use std::time::Instant;

/// Collapses anonymous memory but for the mappings of `except`, from outside or, without the right for that, by a borrowed thread.
pub(super) fn collapse_somehow(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    except: &[Range],
    budget: &Budget,
) -> Result<(Collapsed, Stops), String> {
    match collapse(chosen.pid, parts, except, budget) {
        Err(Refused::Denied { .. }) => in_tracer(|| collapse_inside(chosen, seccomp, parts, except, budget)),
        other => other.map(|done| (done, Stops::default())).map_err(|refused| refused.to_string()),
    }
}

/// Collapses anonymous memory once. Also returns the process as it is afterwards, if any of it has become huge.
///
/// # Errors
/// One line that says why nothing of it can be collapsed.
pub(crate) fn collapse_once(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    except: &[Range],
    budget: &Budget,
) -> Result<(Collapsed, Option<Change>), String> {
    let began = Instant::now();
    let chosen = chosen.reached()?;
    let (collapsed, stops) = collapse_somehow(chosen, seccomp, parts, except, budget)?;
    // It may have ended meanwhile.
    let now = if collapsed.huge > 0 { unchanged(chosen.pid).ok() } else { None };
    let change = now.map(|mut change| {
        change.count(stops);
        change.lines.extend(collapsed.to_string().lines().next().map(String::from));
        change.took_ms = millis(began.elapsed());
        change
    });
    Ok((collapsed, change))
}

/// Reports a process as it is.
pub(super) fn unchanged(pid: u32) -> Result<Change, String> {
    let began = Instant::now();
    let now = snapshot::live(Some(pid), 0).map_err(|e| e.to_string())?;
    let report = report(pid, &now, &plan(&now, &Policy::default()), None)?;
    Ok(Change::new(Vec::new(), Vec::new(), Stops::default(), began.elapsed(), report))
}

/// Collapses anonymous memory without the right to do so from outside: a borrowed thread asks for it, and is
/// stopped for as long as the kernel copies a block.
fn collapse_inside(
    chosen: Chosen,
    seccomp: Seccomp,
    parts: &[Part],
    except: &[Range],
    budget: &Budget,
) -> Result<(Collapsed, Stops), String> {
    let pid = chosen.pid;
    let (_, mut now) = read_process(pid)?;
    leave_out(&mut now, except);
    let program = Program::open(pid).map_err(|e| format!("/proc/{pid}/pagemap: {e}"))?;
    let mut live = open(chosen, &now.mappings, seccomp)?;
    let mut how = |block: Range| match live.collapse(block) {
        Err(Fault::Call { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
        other => other.map_err(|fault| io::Error::other(fault.to_string())),
    };
    let collapsed = collapse_by(&program, &now, parts, budget, &mut how).map_err(|e| e.to_string())?;
    Ok((collapsed, live.stops()))
}
