// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages.
//!
//! This process becomes the program; the lifting is done by a helper beside it.

use crate::FAILED;
use crate::Failure;
use crate::dry_run::dry_run;
use crate::job::LiftJob;
use crate::options::{Children, Malloc, Seccomp, StartOptions, Verbosity};
use hugelift_core::addr::PageSize;
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::snapshot::Part;
use hugelift_os::elf::malloc::allocators;
use hugelift_os::io::output;
use hugelift_os::launch;
use hugelift_os::launch::bypass::Bypass;
use hugelift_os::launch::helper::Verdict;
use hugelift_os::launch::inside::{self, Inside};
use hugelift_os::launch::lookup::{Lookup, resolve};
use hugelift_os::launch::program::{examine, exec, set_variable};
use hugelift_os::launch::seccomp::{self, OwnStatus};
use hugelift_os::machine::users::Identity;
use hugelift_os::machine::{memory_limit_here, thp_page};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// What is found out before any system call is made that the loader of the C library has not made.
pub struct EarlyStatus(Result<OwnStatus, Bypass>);

impl EarlyStatus {
    /// Looks at the calling process.
    pub fn read() -> EarlyStatus {
        EarlyStatus(OwnStatus::read().map_err(Bypass::from))
    }

    /// Whether a seccomp filter may kill this process for what a launcher does.
    pub fn is_filtered(&self) -> bool {
        self.0.as_ref().is_ok_and(OwnStatus::is_filtered)
    }

    /// Whether this process may become a launcher.
    fn permits(&self, options: &StartOptions) -> Result<(), Bypass> {
        match &self.0 {
            Ok(own) => {
                seccomp::check(own, options.seccomp == Seccomp::Try)?;
                if own.is_foreign() { Err(Bypass::ForeignProc) } else { Ok(()) }
            }
            // /proc shows nothing of a filter: there may be one.
            Err(Bypass::Proc(error)) => Err(Bypass::Proc(error.clone())),
            Err(_) => Err(Bypass::Unreadable),
        }
    }
}

/// Becomes the program; returns the exit status where nothing is started.
///
/// # Errors
/// The program cannot be started.
pub fn start(options: &StartOptions, status: &EarlyStatus) -> Result<i32, Failure> {
    let policy = options.lift.policy.policy()?;
    let identity = options.user.as_deref().map(Identity::find).transpose()?;
    let report = options.report.as_deref().map(output::open).transpose();
    let report = report.map_err(|e| format!("--report: {e}"))?;
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let name = &options.command[0];
    let mut job = LiftJob::new(&options.lift, name.into(), policy);
    if options.dry_run {
        return Ok(dry_run(&resolve(name)?, &job.policy, job.choosing, job.verbosity >= Verbosity::Summary));
    }
    job.report = report;
    if let Err(why) = status.permits(options) {
        return start_bypassed(options, &mut job, &why);
    }
    job.adopts = launch::adopts_orphans();
    let mut lookup = Lookup::new(name);
    loop {
        let path = lookup.next_promising()?;
        match become_program(options, &mut job, &path)? {
            Tried::Refused(status) => return Ok(status),
            Tried::Failed(errno) => lookup.refuse(errno)?,
        }
    }
}

/// What came of a file that was to become the program.
enum Tried {
    /// It must not start as it would (`--strict`): the exit status.
    Refused(i32),
    /// execve(2) does not take it: errno.
    Failed(i32),
}

/// Becomes the program at `path`, with a helper beside it if there can be one. Returns if that fails.
fn become_program(options: &StartOptions, job: &mut LiftJob, path: &Path) -> Result<Tried, Failure> {
    if let Some(status) = load_library(options, job, path)? {
        return Ok(Tried::Refused(status));
    }
    if job.policy.backings == [Backing::Pagecache] {
        job.prime(path);
    }
    let keep: Vec<_> = job.report.iter().map(File::as_raw_fd).collect();
    let adopts = job.adopts;
    // The helper works on a copy of the job: it is another process.
    let helper = match examine(path).and_then(|()| launch::start_helper(&mut *job, &keep, adopts)) {
        Ok(helper) => Some(helper),
        Err(why) => match job.bypass(&why) {
            Verdict::Refuse(status) => return Ok(Tried::Refused(status)),
            Verdict::Start => None,
        },
    };
    tell_allocator(options, path, job)?;
    inside::mark_started(path).map_err(|e| format!("cannot set a variable: {e}"))?;
    let errno = failed(&exec(path, &options.command));
    // The next file may be a program that must not be traced.
    helper.into_iter().for_each(launch::Helper::dismiss);
    Ok(Tried::Failed(errno))
}

/// Has the program at `path` load the library, where its children are to be lifted or its data is to
/// be on pages of the pool. Returns an exit status if the program must not start (`--strict`).
fn load_library(options: &StartOptions, job: &mut LiftJob, path: &Path) -> Result<Option<i32>, Failure> {
    let (children, pool) = (options.children == Children::Lift, job.takes_data_from_pool());
    if !children && !pool {
        return Ok(None);
    }
    let library = Inside::for_program(path).map_err(|why| why.to_string());
    if children {
        // Each child has a helper for a moment, whose memory counts while the program runs.
        let refused = match (&library, reserved(&job.policy)) {
            (_, Some(why)) => Some(why),
            (Err(why), None) => Some(why.clone()),
            (Ok(library), None) => lift_children(options, job, library).map(|()| None)?,
        };
        match refused {
            Some(why) if options.lift.strict => {
                job.say(&format!("{}: not started (--strict): --children: {why}", job.program));
                return Ok(Some(FAILED));
            }
            Some(why) => {
                job.say(&format!("{}: its children are started without huge pages: {why}", job.program));
            }
            None => {}
        }
    }
    if pool {
        match library {
            Ok(library) => {
                library.guard(options.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?;
            }
            Err(why) => job.leave_pool(&why),
        }
    }
    Ok(None)
}

/// Becomes the program without any of the calls that a lift needs: execve(2) alone says which file it
/// is. Returns only if that fails.
fn start_bypassed(options: &StartOptions, job: &mut LiftJob, why: &Bypass) -> Result<i32, Failure> {
    if let Verdict::Refuse(status) = job.bypass(why) {
        return Ok(status);
    }
    let mut lookup = Lookup::new(&options.command[0]);
    while let Some(path) = lookup.next_file() {
        lookup.refuse(failed(&exec(&path, &options.command)))?;
    }
    Err(lookup.failure().into())
}

fn failed(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// Has the programs that this one will start lifted as it is, by the library inside them.
fn lift_children(options: &StartOptions, job: &LiftJob, library: &Inside) -> Result<(), Failure> {
    let parts = &job.policy.parts;
    // Heap and stack are advised in every program, however small it is.
    let any = parts.iter().any(|p| matches!(p, Part::Heap | Part::Stack));
    let page = job.policy.page.named().or(thp_page()).unwrap_or(PageSize::MB2);
    let writable = parts.iter().any(|p| p.is_writable());
    let worth = format!("{}{}", if any { 0 } else { page.bytes() }, if writable { "rw" } else { "r" });
    let json = options.lift.for_children().to_json().map_err(|e| format!("options of children: {e}"))?;
    library.lift_children(&worth, &json).map_err(|e| format!("cannot set a variable: {e}"))?;
    if job.verbosity >= Verbosity::Summary
        && let Some(closed) = library.closed_to_others()
    {
        job.say(&format!("{}: {closed}", job.program));
    }
    Ok(())
}

/// Why memory that hugelift takes beside the program could be the program's end: a control group
/// limits its memory, and the user has not said that it can do without some.
fn reserved(policy: &Policy) -> Option<String> {
    let limit = if policy.spare > 0 { None } else { memory_limit_here() }?;
    Some(format!("memory limit: {limit}, all of which the program may need; see --spare"))
}

/// Sets the variables of the allocators that the program has in it.
fn tell_allocator(options: &StartOptions, path: &Path, job: &LiftJob) -> Result<(), Failure> {
    let pages = match options.malloc {
        Malloc::Auto if job.policy.parts.contains(&Part::Heap) => Pages::Thp,
        Malloc::Auto | Malloc::Off => return Ok(()),
        Malloc::Thp => Pages::Thp,
        Malloc::Hugetlb => Pages::Hugetlb,
    };
    // An allocator that has huge pages takes more memory than one that has small ones; and to look for
    // it takes as much memory as the program is large.
    if let Some(why) = reserved(&job.policy) {
        if options.malloc != Malloc::Auto || job.verbosity >= Verbosity::Summary {
            job.say(&format!("{}: --malloc: the allocator is told nothing: {why}", job.program));
        }
        return Ok(());
    }
    let mut allocators = allocators(path);
    // What is no text cannot be added to.
    allocators.retain(|a| std::env::var_os(a.variable()).is_none_or(|v| v.to_str().is_some()));
    let settings = malloc::settings(&allocators, pages, |name| std::env::var(name).ok());
    if settings.is_empty() && options.malloc != Malloc::Auto {
        job.say(&format!("{}: --malloc: no allocator in it that could be told more than it is", job.program));
    }
    for Setting { name, value } in settings {
        if job.verbosity >= Verbosity::Summary {
            job.say(&format!("{}: {name}={value}", job.program));
        }
        set_variable(name, &value).map_err(|e| format!("cannot set {name}: {e}"))?;
    }
    Ok(())
}
