// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages.
//!
//! This process becomes the program; the lifting is done by a helper beside it.

use crate::FAILED;
use crate::dry_run::dry_run;
use crate::failure::Failure;
use crate::options::{BackingChoice, ChildrenChoice, MallocChoice, PolicyArgs, word};
use crate::weigh::{Choosing, TouchedChoice, choose};
use clap::Args;
use hugelift_core::addr::{PageSize, Range, human_bytes};
use hugelift_core::apply::{Outcome, apply, lifted};
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::maps::Mapping;
use hugelift_core::moving::{Image, Move, Stay};
use hugelift_core::plan::{Plan, Span, plan};
use hugelift_core::policy::{Backing, PageChoice, Policy, SpanChoice};
use hugelift_core::report::{self, Report, Total};
use hugelift_core::report_text::{self, Style};
use hugelift_core::skip::{Reason, Skip};
use hugelift_core::snapshot::{Machine, Object, Part, Snapshot};
use hugelift_core::target::Fault;
use hugelift_os::console::say;
use hugelift_os::guard::{Guard, Unguarded};
use hugelift_os::helper::{Lifter, Verdict};
use hugelift_os::inside::{self, Inside, Missing};
use hugelift_os::machine::{self, base_page, folios, thp_page};
use hugelift_os::malloc::allocators;
use hugelift_os::observer::{Observer, cpu_time};
use hugelift_os::perf_map::{self, Copied};
use hugelift_os::plain::Plain;
use hugelift_os::procfs::Process;
use hugelift_os::program::{ExecError, examine, exec, resolve, set_variable};
use hugelift_os::remote::Remote;
use hugelift_os::store::{self, Create};
use hugelift_os::users::Identity;
use hugelift_os::{launch, pagecache, snapshot};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

    /// Name copied code for perf(1): write /tmp/perf-PID.map, and remove it at the program's end
    #[arg(long)]
    perf_map: bool,

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
        words.extend(self.touched.as_ref().map(|touched| format!("--touched={}", word(touched))));
        words.extend(self.perf_map.then(|| "--perf-map".to_string()));
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
    let report = args.report.as_ref().map(|path| {
        File::create(path).map_err(|e| format!("cannot write the report to {}: {e}", path.display()))
    });
    let report = report.transpose()?;
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let name = &args.command[0];
    let path = resolve(name)?;
    let mut job = Job::new(args, name.to_string_lossy().into_owned(), policy);
    if args.dry_run {
        return Ok(dry_run(&path, &job.policy, job.choosing, args.verbose > 0));
    }
    job.report = report;
    if args.children == ChildrenChoice::Lift
        && let Err(why) = lift_children(args, &job.policy)?
    {
        if args.strict {
            return Err(format!("{}: not started (--strict): --children: {why}", job.program).into());
        }
        job.say(&format!("{}: its children are started without huge pages: {why}", job.program));
    }
    if job.policy.backings == [Backing::Pagecache] {
        job.prime(&path);
    }
    if job.takes_data_from_pool() {
        match Inside::find() {
            Ok(inside) => {
                inside.guard(args.fork_reserve).map_err(|e| format!("cannot set a variable: {e}"))?
            }
            Err(why) => job.leave_pool(&why.to_string()),
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

/// Has the programs that this one will start lifted as it is, by the library inside it; why not,
/// if that is not to be had.
fn lift_children(args: &RunArgs, policy: &Policy) -> Result<Result<(), Missing>, Failure> {
    let inside = match Inside::find() {
        Ok(inside) => inside,
        Err(why) => return Ok(Err(why)),
    };
    // Heap and stack are advised in every program, however small it is.
    let any = policy.parts.iter().any(|p| matches!(p, Part::Heap | Part::Stack));
    let page = policy.page.named().or(thp_page()).unwrap_or(PageSize::MB2);
    let writable = policy.parts.iter().any(|p| p.is_writable());
    let worth = format!("{}{}", if any { 0 } else { page.bytes() }, if writable { "rw" } else { "r" });
    inside.lift_children(&worth, &args.words()).map_err(|e| format!("cannot set a variable: {e}"))?;
    Ok(Ok(()))
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

/// What the helper has to do.
pub struct Job {
    program: String,
    policy: Policy,
    choosing: Choosing,
    /// Who looks at the program when it runs.
    observer: Option<Observer>,
    strict: bool,
    verbose: u8,
    quiet: bool,
    report: Option<File>,
    /// What could not be brought into huge folios before the start.
    unprimed: Option<String>,
    /// All that it needs is in huge folios.
    primed: bool,
    /// Why the executable could not be moved.
    stayed: Option<Fault>,
    /// Why data is not taken from the pool although it was asked for.
    unguarded: Option<String>,
    perf_map: bool,
    /// Orphans become the program's children.
    adopts: bool,
    /// Size of a transparent huge page.
    huge: Option<PageSize>,
    /// What there is, if there was time to find out.
    machine: Option<Machine>,
}

impl Lifter for &mut Job {
    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict {
        (**self).lift(pid, target)
    }

    fn prepare(&mut self) {
        (**self).prepare();
    }

    fn meanwhile(&mut self, pid: u32) {
        (**self).meanwhile(pid);
    }

    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        (**self).place(pid, image, mappings)
    }

    fn heap_page(&self) -> Option<PageSize> {
        (**self).heap_page()
    }

    fn placed(&mut self, result: Result<(), &Fault>) {
        (**self).placed(result);
    }

    fn is_done(&self) -> bool {
        (**self).is_done()
    }

    fn afterwards(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.watch();
        }
    }

    fn plain(&mut self, why: &Plain) -> Verdict {
        (**self).plain(why)
    }
}

impl Job {
    /// The job of lifting `program` as the options say.
    pub fn new(args: &RunArgs, program: String, policy: Policy) -> Job {
        let auto = args.policy.backing == BackingChoice::Auto;
        Job {
            program,
            policy,
            choosing: Choosing::new(args.touched, auto, args.strict),
            observer: None,
            strict: args.strict,
            verbose: args.verbose,
            quiet: args.quiet,
            report: None,
            unprimed: None,
            primed: false,
            stayed: None,
            unguarded: None,
            perf_map: args.perf_map,
            adopts: launch::adopts_orphans(),
            huge: None,
            machine: None,
        }
    }

    /// The job of lifting a child of a lifted program, as the options of that one say.
    ///
    /// # Errors
    /// A pattern that is not one.
    pub fn of_child(args: &RunArgs) -> Result<Job, Failure> {
        Ok(Job::new(args, args.command[0].to_string_lossy().into_owned(), args.policy.policy()?))
    }

    /// Brings the program's files into huge folios. Asked for by name only: dropping and reading
    /// them anew costs a large program a tenth of a second.
    fn prime(&mut self, path: &Path) {
        let began = Instant::now();
        let takes = |path: &Path| self.policy.objects.takes_path(path);
        let priming = pagecache::prime_program(path, &self.policy.parts, takes);
        tracing::debug!(?priming, elapsed = ?began.elapsed(), "primed");
        for file in priming.files {
            let obstacle =
                file.obstacles().into_iter().max_by_key(|(_, b)| b.bytes).map(|(_, b)| &b.obstacle);
            let (huge, whole) = (human_bytes(file.huge_bytes), human_bytes(file.whole_bytes));
            let why = obstacle.map_or(String::new(), |o| format!(": {o}"));
            let line = format!("primed {huge} of {whole} of {}{why}", file.path);
            if self.verbose > 0 {
                self.say(&format!("{}: {line}", self.program));
            }
            if obstacle.is_some() {
                self.unprimed.get_or_insert(line);
            }
        }
        self.primed = priming.is_complete;
    }

    fn prepare(&mut self) {
        self.huge = machine::thp_page();
    }

    fn meanwhile(&mut self, pid: u32) {
        self.machine = Some(machine::probe(Some(pid)));
    }

    /// A program that the page cache has in huge folios goes where they can be mapped as such; one
    /// that the store has, or is to have, to where others will be.
    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        let policy = &self.policy;
        let cached = policy.backings.contains(&Backing::Pagecache);
        let shared = policy.backings.contains(&Backing::Shared);
        let wanted = cached || shared;
        let takes = || image.pieces.first().is_some_and(|m| policy.objects.takes_path(&m.path));
        let huge = self.huge.filter(|huge| wanted && policy.page.allows(*huge));
        let huge = huge.filter(|_| takes())?;
        let plan = match image.plan(mappings, &policy.parts, huge, base_page()) {
            Ok(plan) => Some(plan),
            Err(Stay::Congruent | Stay::Small) => return None,
            Err(_) => None,
        };
        let primed = |plan: &Move| cached && pagecache::is_primed(pid, image, plan, &policy.parts, huge);
        let exe = Process::new(pid).path("exe");
        let plan = plan.filter(|plan| primed(plan) || shared && store::may_have(&exe, creation(policy)));
        // One that should have been moved, and is not, has something to say when it is loaded.
        self.primed &= plan.is_some();
        plan
    }

    /// A heap that is to be lifted begins with a whole huge page.
    fn heap_page(&self) -> Option<PageSize> {
        thp_page().filter(|_| self.policy.parts.contains(&Part::Heap))
    }

    /// An executable that could not be moved stays, and its text with it: nothing is lost but
    /// the gain.
    fn placed(&mut self, result: Result<(), &Fault>) {
        self.stayed = result.err().cloned();
    }

    /// What the page cache has needs no help at run time. Only to tell of it, or to be sure of it,
    /// the program must be looked at once it is loaded.
    fn is_done(&self) -> bool {
        let nothing_to_say = self.verbose == 0 && self.report.is_none() && !self.strict;
        let only_read = !self.policy.parts.iter().any(|p| p.is_writable());
        self.primed && only_read && self.stayed.is_none() && nothing_to_say
    }

    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict {
        let began = Instant::now();
        let least = match self.policy.page {
            PageChoice::Usual => PageSize::MB2.bytes() / 2,
            PageChoice::Mixed => base_page().bytes(),
            PageChoice::Only(page) => page.bytes(),
        };
        let everything = self.report.is_some()
            || self.policy.span != SpanChoice::Inner
            || self.policy.parts.iter().any(|p| p.is_writable());
        let least = if everything { 0 } else { least };
        let taken = target.status().and_then(|status| {
            let mut machine = self.machine.take().unwrap_or_else(|| machine::probe(Some(pid)));
            machine::update(&mut machine, &status);
            snapshot::of(Process::new(pid), least, machine, &status)
        });
        let mut before = match taken {
            Ok(before) => before,
            Err(error) => return self.plain(&error.into()),
        };
        if self.policy.page != PageChoice::Usual {
            before.machine.folios = folios();
        }
        if self.policy.backings.contains(&Backing::Pagecache) {
            let takes = |object: &Object| self.policy.objects.takes(object);
            pagecache::find(Some(pid), &mut before, &self.policy.parts, takes);
        }
        if self.policy.backings.contains(&Backing::Shared) {
            let offer = store::offer(pid, &before, &self.policy, creation(&self.policy));
            before.stored = offer.stored;
            target.offer_stored(offer.files);
        }
        let guard = self.takes_data_from_pool().then(|| self.guard(pid, &before)).flatten();
        let mut all = plan(&before, &self.policy);
        if let Some(Err(why)) = guard.as_ref().map(|guard| guard.tell(&planned_on_pool(&all))) {
            self.leave_pool(&why.to_string());
            all = plan(&before, &self.policy);
        }
        let mut chosen = choose(self.choosing, Some(pid), &before, &self.policy, all);
        let plan = &mut chosen.plan;
        if let Some(fault) = &self.stayed {
            let of_executable = |s: &&mut Skip| s.object == 0 && s.reason == Reason::NotPrimed;
            for skip in plan.skips.iter_mut().filter(of_executable) {
                skip.reason = Reason::Failed(Backing::Pagecache, fault.clone());
            }
        }
        let plan = &chosen.plan;
        tracing::debug!(?plan, why = ?chosen.line, "planned");
        let cpu_before = cpu_time(pid);
        let outcome = apply(target, plan);
        let lift =
            cpu_time(pid).zip(cpu_before).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        let took = began.elapsed();
        tracing::debug!(?outcome, ?took, "applied");
        if let Some(guard) = guard
            && let Err(error) = guard.tell(&on_pool(plan, &outcome))
        {
            // It knows of more than there is: a child copies in vain.
            tracing::debug!(%error, "the guard was not told what came of it");
        }
        let complaints = complaints(plan, &outcome);
        let complete = !plan.spans.is_empty() && outcome.is_complete() && complaints.is_empty();
        if let Some(lost) = &outcome.lost {
            self.say(&format!("{}: {lost}", self.program));
        }
        let writable = plan.spans.iter().any(|s| matches!(s.part, Part::Data | Part::Bss));
        let unguarded = self.unguarded.as_ref().filter(|_| writable).map(|why| {
            format!(
                "--data-backing hugetlb: fork(2) might kill a child: {why}; transparent huge pages instead"
            )
        });
        if let Some(line) = &unguarded {
            self.say(&format!("{}: {line}", self.program));
        }
        let complete = complete && unguarded.is_none();
        if self.strict && !complete {
            let untouched = plan.skips.iter().any(|s| s.reason == Reason::NotTouched);
            let why = match complaints.largest().or(unguarded) {
                Some(line) => line,
                None if untouched => "nothing is known of what it touches; --touched all lifts it".into(),
                None => "nothing in it is larger than a huge page".to_string(),
            };
            self.say(&format!("{}: not started (--strict): {why}", self.program));
            return Verdict::Refuse(FAILED);
        }
        if let Some(line) = complaints.largest() {
            let note = self.unprimed.as_ref().filter(|_| self.verbose == 0);
            let note = note.map_or(String::new(), |note| format!(" ({note})"));
            self.say(&format!("{}: {line}{note}", self.program));
        }
        if let Some(trouble) = &chosen.trouble {
            self.say(&format!("{}: {trouble}", self.program));
        }
        if let Some(line) = chosen.line.as_ref().filter(|_| self.verbose > 0) {
            self.say(&format!("{}: {line}", self.program));
        }
        if self.perf_map {
            self.name_code(pid, &before, plan, &outcome);
        }
        self.tell(pid, &before, plan, &outcome, took);
        // One that waits for its helper would wait for as long as it lives.
        self.observer = if self.adopts { None } else { chosen.observer(pid, &before, &outcome, lift) };
        Verdict::Start
    }

    /// Whether data or bss is to be on pages of the pool, where fork(2) needs a guard.
    fn takes_data_from_pool(&self) -> bool {
        let parts = &self.policy.parts;
        self.policy.data_backings.contains(&Backing::Hugetlb)
            && (parts.contains(&Part::Data) || parts.contains(&Part::Bss))
    }

    /// The guard of fork(2) in the program; without one, its data stays off the pool.
    fn guard(&mut self, pid: u32, before: &Snapshot) -> Option<Guard> {
        let found = match before.machine.moves_hugetlb {
            true => Guard::find(pid, &before.mappings),
            false => Err(Unguarded::OldKernel),
        };
        found.map_err(|why| self.leave_pool(&why.to_string())).ok()
    }

    /// What is written is not put on pages of the pool: a child of fork(2) might be killed for
    /// want of them.
    fn leave_pool(&mut self, why: &str) {
        self.policy.data_backings = vec![Backing::Thp];
        self.unguarded = Some(why.to_string());
    }

    /// Code that was copied to memory of no file: perf(1) finds its names in a file of their own.
    fn name_code(&self, pid: u32, before: &Snapshot, plan: &Plan, outcome: &Outcome) {
        let mut spans: BTreeMap<usize, Vec<Range>> = BTreeMap::new();
        let is_copy = |(span, backing): &(&Span, Backing)| {
            span.part == Part::Text && matches!(backing, Backing::Thp | Backing::Hugetlb)
        };
        for (span, _) in lifted(plan, outcome).filter(is_copy) {
            spans.entry(span.object).or_default().push(span.range);
        }
        let open = |(object, spans)| Copied::open(pid, before.objects.get(object)?, spans);
        let objects: Vec<Copied> = spans.into_iter().filter_map(open).collect();
        if objects.is_empty() {
            return;
        }
        // A watcher would become the program's child: there the file stays.
        let done = match self.adopts {
            true => perf_map::write(pid, &objects).map(drop),
            false => perf_map::watch(pid, &objects),
        };
        if let Err(error) = done {
            self.say(&format!("{}: cannot write /tmp/perf-{pid}.map: {error}", self.program));
        }
    }

    /// What smaps shows now: only that is said.
    fn tell(&mut self, pid: u32, before: &Snapshot, plan: &Plan, outcome: &Outcome, took: Duration) {
        if self.verbose == 0 && self.report.is_none() {
            return;
        }
        let usage = match Process::new(pid).smaps() {
            Ok(usage) => usage,
            Err(error) => return self.say(&format!("{}: lifted, but not verified: {error}", self.program)),
        };
        let mut report = Report::new(before, Some(&usage), plan, Some(outcome));
        report.pid = Some(pid);
        if self.verbose > 0 {
            self.say(&format!(
                "{}: {} ({:.1} ms)",
                self.program,
                self.summary(&report),
                took.as_secs_f64() * 1e3
            ));
        }
        if self.verbose > 1 {
            let style = Style { width: 100, verbose: true };
            for line in report_text::text(&report, &style).lines() {
                self.say(line);
            }
        }
        self.write(&report);
    }

    /// "text 24 of 24 MB, rodata 50 of 52 MB on huge pages"
    fn summary(&self, report: &Report) -> String {
        let wanted = |part: &Part, t: &Total| t.liftable_bytes > 0 && self.policy.parts.contains(part);
        let parts = report.totals.iter().filter(|(part, t)| wanted(part, t));
        let parts: Vec<String> = parts
            .map(|(part, t)| {
                let now =
                    format!("{part} {} of {}", human_bytes(t.huge_bytes), human_bytes(t.liftable_bytes));
                let later = match report.bytes(*part, &Reason::OnTouch) {
                    0 => String::new(),
                    later => format!(" and {} more as it is touched", human_bytes(later)),
                };
                let unseen = match report.unseen_bytes(*part) {
                    0 => String::new(),
                    unseen => format!(" and {} on smaller pages", human_bytes(unseen)),
                };
                now + &later + &unseen
            })
            .collect();
        match parts.as_slice() {
            [] => "nothing in it is larger than a huge page".into(),
            parts => format!("{} on huge pages", parts.join(", ")),
        }
    }

    fn write(&mut self, report: &impl serde::Serialize) {
        if let Some(file) = &mut self.report
            && let Err(error) = serde_json::to_writer(&mut *file, report)
                .map_err(io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
        {
            self.say(&format!("{}: cannot write the report: {error}", self.program));
        }
    }

    fn plain(&mut self, why: &Plain) -> Verdict {
        let nothing = serde_json::Map::new();
        self.write(&serde_json::json!({
            "version": report::VERSION, "objects": [], "totals": nothing, "plain": why.to_string(),
        }));
        if self.strict {
            self.say(&format!("{}: not started (--strict): {why}", self.program));
            return Verdict::Refuse(FAILED);
        }
        self.say(&format!("{}: started without huge pages: {why}", self.program));
        Verdict::Start
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            say(line);
        }
    }
}

/// What is written and may come from the pool.
fn planned_on_pool(plan: &Plan) -> Vec<(Range, PageSize)> {
    let page = |span: &Span| span.attempts.iter().find(|a| a.backing == Backing::Hugetlb).map(|a| a.page);
    let writable = plan.spans.iter().filter(|s| s.part.is_writable());
    writable.filter_map(|span| Some((span.range, page(span)?))).collect()
}

/// What is written and has come from there.
fn on_pool(plan: &Plan, outcome: &Outcome) -> Vec<(Range, PageSize)> {
    let from_pool: Vec<Range> =
        lifted(plan, outcome).filter(|(_, b)| *b == Backing::Hugetlb).map(|(s, _)| s.range).collect();
    planned_on_pool(plan).into_iter().filter(|(range, _)| from_pool.contains(range)).collect()
}

/// What was not lifted although the program's layout allows it, by reason.
struct Complaints(BTreeMap<&'static str, (u64, Reason)>);

fn complaints(plan: &Plan, outcome: &Outcome) -> Complaints {
    let mut all: BTreeMap<&'static str, (u64, Reason)> = BTreeMap::new();
    let mut add = |bytes: u64, reason: Reason| {
        all.entry(reason.key())
            .and_modify(|(sum, first)| {
                *sum += bytes;
                *first = first.and(&reason);
            })
            .or_insert((bytes, reason));
    };
    for skip in plan.skips.iter().filter(|s| s.reason.is_remediable()) {
        add(skip.range.len(), skip.reason.clone());
    }
    for (span, result) in plan.spans.iter().zip(&outcome.spans) {
        let bytes = if result.lifted.is_some() { result.lacking() } else { span.range.len() };
        if let Some((backing, fault)) = result.failures.last()
            && bytes > 0
            && !matches!(fault, Fault::Lost(_))
        {
            add(bytes, Reason::Failed(*backing, fault.clone()));
        }
    }
    Complaints(all)
}

impl Complaints {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One line for all: the reason that holds most bytes back, and what helps.
    fn largest(&self) -> Option<String> {
        let (bytes, reason) = self.0.values().max_by_key(|(bytes, _)| *bytes)?;
        let hint = reason.hint().map_or(String::new(), |h| format!("; {h}"));
        let more = match self.0.len() {
            1 => String::new(),
            n => format!(" (and {} other reasons: -vv)", n - 1),
        };
        Some(format!("{} not lifted: {reason}{hint}{more}", human_bytes(*bytes)))
    }
}
