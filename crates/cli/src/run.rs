// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages.
//!
//! This process becomes the program; the lifting is done by a helper beside it.

mod afterwards;
mod complaints;
mod job;
mod tell;

pub use job::Job;

use crate::dry_run::dry_run;
use crate::failure::Failure;
use crate::options::{AfterForkChoice, ChildrenChoice, MallocChoice, NamesChoice, PolicyArgs, word};
use crate::weigh::TouchedChoice;
use clap::Args;
use hugelift_core::addr::PageSize;
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::snapshot::Part;
use hugelift_os::console::say;
use hugelift_os::helper::Verdict;
use hugelift_os::inside::{self, Inside};
use hugelift_os::launch;
use hugelift_os::machine::thp_page;
use hugelift_os::malloc::allocators;
use hugelift_os::output;
use hugelift_os::program::{ExecError, examine, exec, resolve, set_variable};
use hugelift_os::store::Create;
use hugelift_os::users::Identity;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Start a program with its code and read-only data on huge pages
///
/// The program runs as if started without hugelift: same process, same exit status. What
/// cannot be lifted runs as it is, and one line on stderr says why.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Run the program as this user, by name or number (root only)
    #[arg(long, value_name = "USER[:GROUP]")]
    user: Option<String>,

    /// Have the program's allocator put the heap on huge pages, by its variable of the environment
    #[arg(long, value_enum, default_value_t = MallocChoice::Auto)]
    malloc: MallocChoice,

    /// Which huge pages of text and rodata are copied [default: all, and with --backing auto as many
    /// as pay, by what past runs took and touched]
    #[arg(long, value_enum)]
    touched: Option<TouchedChoice>,

    /// What becomes of the programs that it starts itself
    #[arg(long, value_enum, default_value_t = ChildrenChoice::Plain)]
    children: ChildrenChoice,

    /// What becomes of its huge pages that writes after a fork have split
    #[arg(long, value_enum, default_value_t = AfterForkChoice::Auto)]
    after_fork: AfterForkChoice,

    /// Pages of the pool that are kept for what a forked child writes (--data-backing hugetlb)
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    fork_reserve: u64,

    /// Print what would be done, and start nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not start the program (exit 125) unless all that was planned is lifted
    #[arg(long)]
    strict: bool,

    /// Write what smaps shows after the lift to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

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
    perf_map: Option<NamesChoice>,

    /// Say what was lifted (-vv: and every skip)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Say nothing
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// The program, looked up on PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROG", "ARGS"])]
    command: Vec<OsString>,
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
pub fn run(args: &RunArgs) -> i32 {
    match try_run(args) {
        Ok(status) => status,
        Err(error) => {
            say(&error.message);
            error.status
        }
    }
}

fn try_run(args: &RunArgs) -> Result<i32, Failure> {
    let policy = args.policy.policy()?;
    let identity = args.user.as_deref().map(Identity::find).transpose()?;
    let report = args.report.as_deref().map(output::open).transpose();
    let report = report.map_err(|e| format!("--report: {e}"))?;
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let name = &args.command[0];
    let path = resolve(name)?;
    let mut job = Job::new(args, name.into(), policy);
    if args.dry_run {
        return Ok(dry_run(&path, &job.policy, job.choosing, args.verbose > 0));
    }
    job.report = report;
    let lifts_children = args.children == ChildrenChoice::Lift;
    let library = (lifts_children || job.takes_data_from_pool()).then(|| Inside::for_program(&path));
    match &library {
        Some(Ok(library)) if lifts_children => lift_children(args, &job, library)?,
        Some(Err(why)) if lifts_children => {
            if args.strict {
                return Err(format!("{}: not started (--strict): --children: {why}", job.program).into());
            }
            job.say(&format!("{}: its children are started without huge pages: {why}", job.program));
        }
        _ => {}
    }
    if job.policy.backings == [Backing::Pagecache] {
        job.prime(&path);
    }
    if job.takes_data_from_pool() {
        match &library {
            Some(Ok(library)) => {
                library.guard(args.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?
            }
            Some(Err(why)) => job.leave_pool(&why.to_string()),
            None => {}
        }
    }
    let keep: Vec<_> = job.report.iter().map(File::as_raw_fd).collect();
    // The helper works on a copy of the job: it is another process.
    let started = examine(&path).and_then(|()| launch::start_helper(&mut job, &keep));
    if let Err(why) = started
        && let Verdict::Refuse(status) = job.plain(&why)
    {
        return Ok(status);
    }
    tell_allocator(args, &path, &job)?;
    inside::mark_started(&path).map_err(|e| format!("cannot set a variable: {e}"))?;
    let source = exec(&path, &args.command);
    Err(ExecError { program: job.program, source }.into())
}

/// Has the programs that this one will start lifted as it is, by the library inside them.
fn lift_children(args: &RunArgs, job: &Job, library: &Inside) -> Result<(), Failure> {
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

/// Sets the variables of the allocators that the program has in it.
fn tell_allocator(args: &RunArgs, path: &Path, job: &Job) -> Result<(), Failure> {
    let pages = match args.malloc {
        MallocChoice::Auto if job.policy.parts.contains(&Part::Heap) => Pages::Thp,
        MallocChoice::Auto | MallocChoice::Off => return Ok(()),
        MallocChoice::Thp => Pages::Thp,
        MallocChoice::Hugetlb => Pages::Hugetlb,
    };
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

/// Who asks for shared code and nothing else gets it at once.
pub fn creation(policy: &Policy) -> Create {
    if policy.backings == [Backing::Shared] { Create::Now } else { Create::SecondStart }
}
