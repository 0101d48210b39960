// SPDX-License-Identifier: Apache-2.0
//! The launcher: the process that becomes the program, with a helper beside it that lifts it.

use crate::Failure;
use crate::allocator::{allocator_settings, ask_allocator};
use crate::asked::Asked;
use crate::dry_run::dry_run;
use crate::fork_guard;
use crate::job::LiftJob;
use crate::launch;
use crate::launch::bypass::Bypass;
use crate::launch::bypass::Verdict;
use crate::launch::examine::examine;
use crate::launch::seccomp::{self, OwnStatus};
use crate::live::membership::MARK;
use crate::options::{Children, Seccomp, StartOptions};
use crate::watching::may_lift_later;
use hugelift_core::policy::{Backing, Copies};
use hugelift_linux::io::output;
use hugelift_linux::lookup::{Lookup, resolve};
use hugelift_linux::machine::users::Identity;
use hugelift_linux::program::{exec, set_variable};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The status of the calling process, read before it makes any system call that the loader of the C
/// library has not made: a seccomp filter may kill it for any other call.
pub struct EarlyStatus(Result<OwnStatus, Bypass>);

impl EarlyStatus {
    /// Reads the status.
    pub fn read() -> EarlyStatus {
        EarlyStatus(OwnStatus::read().map_err(Bypass::from))
    }

    /// Returns whether a seccomp filter is in force.
    pub fn is_filtered(&self) -> bool {
        self.0.as_ref().is_ok_and(OwnStatus::is_filtered)
    }

    /// Checks that this process may become a launcher.
    fn permits(&self, seccomp: Seccomp) -> Result<(), Bypass> {
        match &self.0 {
            Ok(own) => {
                seccomp::check(own, seccomp == Seccomp::Try)?;
                if own.is_foreign() { Err(Bypass::ForeignProc) } else { Ok(()) }
            }
            // Without /proc it is unknown whether there is a filter.
            Err(Bypass::Proc(error)) => Err(Bypass::Proc(error.clone())),
            Err(_) => Err(Bypass::Unreadable),
        }
    }
}

/// Becomes the program. Returns an exit status where nothing is started: after `--dry-run`, or because
/// of `--strict`.
///
/// # Errors
/// The program cannot be started.
pub fn start(options: &StartOptions, status: &EarlyStatus) -> Result<i32, Failure> {
    let Some(name) = options.command.first() else { return Err("no program to start".to_string().into()) };
    // What the user has typed is checked without a system call.
    options.lift.policy.object_filter()?;
    // Until this is known, a filter may kill this process for any call that the program does not make.
    let permitted = if options.dry_run { Ok(()) } else { status.permits(options.seccomp) };
    let identity = options.user.as_deref().map(Identity::find).transpose()?;
    // Opened by the user who asked for it.
    let report = options.report.as_deref().map(output::open).transpose();
    let report = report.map_err(|e| format!("--report: {e}"))?;
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let asked = Asked { program: name.into(), options: options.lift.clone(), report };
    if let Err(why) = permitted {
        return start_bypassed(&options.command, &asked, &why);
    }
    let mut policy = options.lift.policy.policy()?;
    if !options.lift.copies_at_start() && may_lift_later() {
        policy.copies = Copies::Later;
    }
    if options.dry_run {
        dry_run(&resolve(name)?, &policy, options)?;
        return Ok(0);
    }
    let mut job = LiftJob::new(asked, policy, options.children == Children::Lift, launch::adopts_orphans());
    let mut lookup = Lookup::new(name);
    loop {
        let path = lookup.next_promising()?;
        match become_program(options, &mut job, &path)? {
            Tried::Refused(status) => return Ok(status),
            Tried::Failed(errno) => lookup.refuse(errno)?,
        }
    }
}

/// The result of trying to become the program with one file.
enum Tried {
    /// `--strict` forbids its start, which would not be as planned: the exit status.
    Refused(i32),
    /// execve(2) failed: errno.
    Failed(i32),
}

/// Becomes the program at `path`, with a helper beside it if there can be one. Returns if that fails.
fn become_program(options: &StartOptions, job: &mut LiftJob, path: &Path) -> Result<Tried, Failure> {
    // A program that is started plainly, such as a set-uid one, gets no library.
    let examined = examine(path);
    match examined {
        Ok(()) => fork_guard::request(options, job, path)?,
        Err(_) => fork_guard::withdraw()?,
    }
    if let Some(Verdict::Refuse(status)) = job.give_up_children() {
        return Ok(Tried::Refused(status));
    }
    if job.policy.backings == [Backing::Pagecache] {
        job.prime(path);
    }
    // The helper reports on them.
    let allocator = allocator_settings(options.malloc, path, &job.policy);
    job.allocator = allocator.clone().unwrap_or_default();
    job.path = Some(path.to_path_buf());
    let keep: Vec<_> = job.asked.report.iter().map(File::as_raw_fd).collect();
    let adopts = job.adopts;
    // The helper has a copy of the job: it is another process. Its hooks are in `job`, in the order of
    // time.
    let helper = match examined.and_then(|()| launch::start_helper(job, &keep, adopts)) {
        Ok(helper) => Some(helper),
        Err(why) => match job.asked.bypass(&why) {
            Verdict::Refuse(status) => return Ok(Tried::Refused(status)),
            Verdict::Start => None,
        },
    };
    ask_allocator(options.malloc, allocator, job)?;
    if let Some(mark) = &job.mark {
        set_variable(MARK, mark).map_err(|e| format!("cannot set a variable: {e}"))?;
    }
    let errno = errno_of(&exec(path, &options.command));
    // The next file may be a program that must not be traced.
    helper.into_iter().for_each(launch::Helper::dismiss);
    Ok(Tried::Failed(errno))
}

/// Becomes the program without any of the calls that a lift needs: execve(2) alone finds which file it
/// is. Returns only if that fails.
fn start_bypassed(command: &[OsString], asked: &Asked, why: &Bypass) -> Result<i32, Failure> {
    if let Verdict::Refuse(status) = asked.bypass(why) {
        return Ok(status);
    }
    let mut lookup = Lookup::new(asked.program.as_os_str());
    while let Some(path) = lookup.next_file() {
        lookup.refuse(errno_of(&exec(&path, command)))?;
    }
    Err(lookup.failure().into())
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}
