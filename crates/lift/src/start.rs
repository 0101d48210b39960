// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages.
//!
//! This process becomes the program; the lifting is done by a helper beside it.

use crate::FAILED;
use crate::Failure;
use crate::args::{
    AfterForkChoice, ChildrenChoice, MallocChoice, NamesChoice, PolicyArgs, SeccompChoice, word,
};
use crate::dry_run::dry_run;
use crate::job::LiftJob;
use crate::weigh::TouchedChoice;
use clap::Args;
use hugelift_core::addr::PageSize;
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::snapshot::Part;
use hugelift_os::elf::malloc::allocators;
use hugelift_os::io::console::say;
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
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Start a program with its code and read-only data on huge pages
///
/// The program runs as if started without hugelift: same process, same exit status. What
/// cannot be lifted runs as it is, and one line on stderr says why.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Run the program as this user, by name or number (root only)
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,

    /// Have the program's allocator put the heap on huge pages, by its variable of the environment
    #[arg(long, value_enum, default_value_t = MallocChoice::Auto)]
    pub(crate) malloc: MallocChoice,

    /// Which huge pages of text and rodata are copied [default: all, and with --backing auto as many
    /// as pay, by what past runs took and touched]
    #[arg(long, value_enum)]
    pub(crate) touched: Option<TouchedChoice>,

    /// What becomes of the programs that it starts itself
    #[arg(long, value_enum, default_value_t = ChildrenChoice::Plain)]
    pub(crate) children: ChildrenChoice,

    /// What becomes of its huge pages that writes after a fork have split
    #[arg(long, value_enum, default_value_t = AfterForkChoice::Auto)]
    pub(crate) after_fork: AfterForkChoice,

    /// Pages of the pool that are kept for what a forked child writes (--data-backing hugetlb)
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    pub(crate) fork_reserve: u64,

    /// What is done where a seccomp filter is in force, which may kill who makes the calls of a lift
    #[arg(long, value_enum, default_value_t = SeccompChoice::Auto)]
    pub(crate) seccomp: SeccompChoice,

    /// Print what would be done, and start nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not start the program (exit 125) unless all that was planned is lifted
    #[arg(long)]
    pub(crate) strict: bool,

    /// Write what smaps shows after the lift to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Name copied code for perf(1): write /tmp/perf-PID.map, and remove it at the program's end;
    /// with the names of the source, or (=mangled) of the symbol table
    #[arg(
        long,
        value_enum,
        value_name = "NAMES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "demangled"
    )]
    pub(crate) perf_map: Option<NamesChoice>,

    /// Say what was lifted (-vv: and every skip)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say nothing
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// The program, looked up on PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROG", "ARGS"])]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// The words that say how children are lifted. What they write on stderr may be read by their
    /// parent: without `-v` nothing is said.
    fn words(&self) -> Vec<String> {
        let mut words = self.policy.words();
        words.push(format!("--malloc={}", word(&self.malloc)));
        words.push(format!("--fork-reserve={}", self.fork_reserve));
        words.push(format!("--after-fork={}", word(&self.after_fork)));
        words.extend(self.touched.as_ref().map(|touched| format!("--touched={}", word(touched))));
        words.extend(self.perf_map.as_ref().map(|names| format!("--perf-map={}", word(names))));
        match self.verbose {
            0 => words.push("--quiet".into()),
            n => words.extend((0..n).map(|_| "-v".to_string())),
        }
        words
    }
}

/// Runs the program; returns only if that fails.
pub fn run(args: &RunArgs, start: &Beginning) -> i32 {
    match try_run(args, start) {
        Ok(status) => status,
        Err(error) => {
            say(&error.message);
            error.status
        }
    }
}

/// What is found out before any system call is made that the loader of the C library has not made.
pub struct Beginning(Result<OwnStatus, Bypass>);

impl Beginning {
    /// Looks at the calling process.
    pub fn look() -> Beginning {
        Beginning(OwnStatus::read().map_err(Bypass::from))
    }

    /// Whether a seccomp filter may kill this process for what a launcher does.
    pub fn is_filtered(&self) -> bool {
        self.0.as_ref().is_ok_and(OwnStatus::is_filtered)
    }

    /// Whether this process may become a launcher.
    fn permits(&self, args: &RunArgs) -> Result<(), Bypass> {
        match &self.0 {
            Ok(own) => {
                seccomp::check(own, args.seccomp == SeccompChoice::Try)?;
                if own.is_foreign() { Err(Bypass::ForeignProc) } else { Ok(()) }
            }
            // /proc shows nothing of a filter: there may be one.
            Err(Bypass::Proc(error)) => Err(Bypass::Proc(error.clone())),
            Err(_) => Err(Bypass::Unreadable),
        }
    }
}

fn try_run(args: &RunArgs, beginning: &Beginning) -> Result<i32, Failure> {
    let policy = args.policy.policy()?;
    let identity = args.user.as_deref().map(Identity::find).transpose()?;
    let report = args.report.as_deref().map(output::open).transpose();
    let report = report.map_err(|e| format!("--report: {e}"))?;
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let name = &args.command[0];
    let mut job = LiftJob::new(args, name.into(), policy);
    if args.dry_run {
        return Ok(dry_run(&resolve(name)?, &job.policy, job.choosing, args.verbose > 0));
    }
    job.report = report;
    if let Err(why) = beginning.permits(args) {
        return start_bypassed(args, &mut job, &why);
    }
    job.adopts = launch::adopts_orphans();
    let mut lookup = Lookup::new(name);
    loop {
        let path = lookup.next_promising()?;
        match start(args, &mut job, &path)? {
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
fn start(args: &RunArgs, job: &mut LiftJob, path: &Path) -> Result<Tried, Failure> {
    if let Some(status) = load_library(args, job, path)? {
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
    tell_allocator(args, path, job)?;
    inside::mark_started(path).map_err(|e| format!("cannot set a variable: {e}"))?;
    let errno = failed(&exec(path, &args.command));
    // The next file may be a program that must not be traced.
    helper.into_iter().for_each(launch::Helper::dismiss);
    Ok(Tried::Failed(errno))
}

/// Has the program at `path` load the library, where its children are to be lifted or its data is to
/// be on pages of the pool. Returns an exit status if the program must not start (`--strict`).
fn load_library(args: &RunArgs, job: &mut LiftJob, path: &Path) -> Result<Option<i32>, Failure> {
    let (children, pool) = (args.children == ChildrenChoice::Lift, job.takes_data_from_pool());
    if !children && !pool {
        return Ok(None);
    }
    let library = Inside::for_program(path).map_err(|why| why.to_string());
    if children {
        // Each child has a helper for a moment, whose memory counts while the program runs.
        let refused = match (&library, reserved(&job.policy)) {
            (_, Some(why)) => Some(why),
            (Err(why), None) => Some(why.clone()),
            (Ok(library), None) => lift_children(args, job, library).map(|()| None)?,
        };
        match refused {
            Some(why) if args.strict => {
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
                library.guard(args.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?;
            }
            Err(why) => job.leave_pool(&why),
        }
    }
    Ok(None)
}

/// Becomes the program without any of the calls that a lift needs: execve(2) alone says which file it
/// is. Returns only if that fails.
fn start_bypassed(args: &RunArgs, job: &mut LiftJob, why: &Bypass) -> Result<i32, Failure> {
    if let Verdict::Refuse(status) = job.bypass(why) {
        return Ok(status);
    }
    let mut lookup = Lookup::new(&args.command[0]);
    while let Some(path) = lookup.next_file() {
        lookup.refuse(failed(&exec(&path, &args.command)))?;
    }
    Err(lookup.failure().into())
}

fn failed(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// Has the programs that this one will start lifted as it is, by the library inside them.
fn lift_children(args: &RunArgs, job: &LiftJob, library: &Inside) -> Result<(), Failure> {
    let parts = &job.policy.parts;
    // Heap and stack are advised in every program, however small it is.
    let any = parts.iter().any(|p| matches!(p, Part::Heap | Part::Stack));
    let page = job.policy.page.named().or(thp_page()).unwrap_or(PageSize::MB2);
    let writable = parts.iter().any(|p| p.is_writable());
    let worth = format!("{}{}", if any { 0 } else { page.bytes() }, if writable { "rw" } else { "r" });
    library.lift_children(&worth, &args.words()).map_err(|e| format!("cannot set a variable: {e}"))?;
    if job.verbose > 0
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
fn tell_allocator(args: &RunArgs, path: &Path, job: &LiftJob) -> Result<(), Failure> {
    let pages = match args.malloc {
        MallocChoice::Auto if job.policy.parts.contains(&Part::Heap) => Pages::Thp,
        MallocChoice::Auto | MallocChoice::Off => return Ok(()),
        MallocChoice::Thp => Pages::Thp,
        MallocChoice::Hugetlb => Pages::Hugetlb,
    };
    // An allocator that has huge pages takes more memory than one that has small ones; and to look for
    // it takes as much memory as the program is large.
    if let Some(why) = reserved(&job.policy) {
        if args.malloc != MallocChoice::Auto || job.verbose > 0 {
            job.say(&format!("{}: --malloc: the allocator is told nothing: {why}", job.program));
        }
        return Ok(());
    }
    let mut allocators = allocators(path);
    // What is no text cannot be added to.
    allocators.retain(|a| std::env::var_os(a.variable()).is_none_or(|v| v.to_str().is_some()));
    let settings = malloc::settings(&allocators, pages, |name| std::env::var(name).ok());
    if settings.is_empty() && args.malloc != MallocChoice::Auto {
        job.say(&format!("{}: --malloc: no allocator in it that could be told more than it is", job.program));
    }
    for Setting { name, value } in settings {
        if job.verbose > 0 {
            job.say(&format!("{}: {name}={value}", job.program));
        }
        set_variable(name, &value).map_err(|e| format!("cannot set {name}: {e}"))?;
    }
    Ok(())
}
