// SPDX-License-Identifier: Apache-2.0
//! Gives back the zeros on the huge pages of a running process, from outside or by a thread of its own ([`crate::unused`]).

use super::change::{Change, millis};
use super::chosen::Chosen;
use super::collapse::unchanged;
use super::open::{in_tracer, open, read_process};
use crate::options::Seccomp;
use crate::unused::{self, KEEPS_ZEROS, Limit};
use crate::watcher::collapse::Meter;
use hugelift_core::addr::Addr;
use hugelift_core::printable::Escape as _;
use hugelift_core::target::Fault;
use hugelift_core::unused::GivenBack;
use hugelift_inject::live::Stops;
use hugelift_linux::io::read::read_text;
use hugelift_linux::machine::split::frees_zeros;
use hugelift_linux::machine::sysfs::{self, ThpMode};
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_linux::proc::procfs::Process;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Gives back the zeros on the huge pages of a process that are mostly zeros. With `turn` it takes about so much time, and begins at
/// this address.
///
/// # Errors
/// One line that says why nothing can be given back. The process is then as before; if the kernel could not be tried on memory of
/// this process, up to three huge pages of it are small.
pub fn give_back_unused(
    chosen: Chosen,
    seccomp: Seccomp,
    turn: Option<(Duration, Addr)>,
) -> Result<Change, String> {
    let began = Instant::now();
    let reached = chosen.reached()?;
    let pid = reached.pid;
    let is_known = match frees_zeros() {
        Some(false) => return Err(KEEPS_ZEROS.into()),
        tried => tried.is_some(),
    };
    let before = rss(pid)?;
    let (mut given, stops) = give_back(reached, seccomp, turn, is_known)?;
    let mut change = unchanged(pid)?;
    (given.rss_bytes_before, given.rss_bytes_after) = (before, rss(pid)?);
    change.count(stops);
    change.lines.extend(given.to_string().lines().map(String::from));
    change.complaints.extend(joins_again(pid).filter(|_| given.split_bytes > 0));
    change.unused = Some(given);
    change.took_ms = millis(began.elapsed());
    Ok(change.of(chosen))
}

fn give_back(
    chosen: Chosen,
    seccomp: Seccomp,
    turn: Option<(Duration, Addr)>,
    is_known: bool,
) -> Result<(GivenBack, Stops), String> {
    let (program, snapshot) = unused::open(chosen.pid)?;
    // What leads to it is open now: from here on no other process can be meant.
    chosen.check()?;
    let (most, from) = turn.unzip();
    let limit = Limit::cpu(most, from.unwrap_or_default());
    match program.advise(None, libc::MADV_COLD) {
        Ok(_) => {
            let how = &mut |page| program.advise(Some(page), libc::MADV_COLD).map(drop);
            let given = unused::give_back(&program, &snapshot, limit, is_known, how)?;
            Ok((given, Stops::default()))
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::ESRCH) => Err("it has ended".into()),
            _ => in_tracer(|| {
                by_a_thread(chosen, seccomp, Limit { meter: Meter::Clock(Instant::now()), ..limit }, is_known)
            }),
        },
    }
}

/// Does it without the right to advise from outside: a borrowed thread is stopped for each huge page.
fn by_a_thread(
    chosen: Chosen,
    seccomp: Seccomp,
    limit: Limit,
    is_known: bool,
) -> Result<(GivenBack, Stops), String> {
    let (_, now) = read_process(chosen.pid)?;
    let (program, _) = unused::open(chosen.pid)?;
    let mut live = open(chosen, &now.mappings, seccomp)?;
    let mut how = |page| match live.make_cold(page) {
        Err(Fault::Call { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
        other => other.map_err(|fault| io::Error::other(fault.to_string())),
    };
    let given = unused::give_back(&program, &now, limit, is_known, &mut how)?;
    Ok((given, live.stops()))
}

/// Returns the resident memory of a process, by smaps.
fn rss(pid: u32) -> Result<u64, String> {
    let usages = Process::new(pid).smaps().map_err(|e| e.to_string())?;
    Ok(usages.iter().map(|usage| usage.rss).sum())
}

/// Returns a line if khugepaged may join the pages again: it takes zero pages for absent ones, and fills in up to `max_ptes_none`
/// of them.
fn joins_again(pid: u32) -> Option<String> {
    const FILE: &str = "khugepaged/max_ptes_none";
    let path = Path::new(sysfs::THP).join(FILE);
    let most: u64 = read_text(&path)?.trim().parse().ok()?;
    // A huge page is given back if more than half of it is zeros.
    let half = thp_page()?.bytes() / base_page().bytes() / 2;
    let mode = sysfs::thp(&read_text).0;
    let is_advised = || {
        let usages = Process::new(pid).smaps().unwrap_or_default();
        usages.iter().any(|usage| usage.advised && usage.anonymous > 0)
    };
    let joins = mode == Some(ThpMode::Always) || mode == Some(ThpMode::Madvise) && is_advised();
    (most > half && joins).then(|| {
        let path = path.escaped();
        format!("khugepaged may fill the zeros in again, as {path} is {most}: 'echo {} > {path}' keeps it from that", half)
    })
}
