// SPDX-License-Identifier: Apache-2.0
//! The job of the helper: where the program goes, and what of it is lifted.

use crate::options::{AfterFork, LiftOptions, Verbosity};
use crate::weigh::{Choosing, Chosen, choose};
use hugelift_core::addr::{PageSize, Range, human_bytes};
use hugelift_core::apply::{Outcome, apply, lifted};
use hugelift_core::demangle::Names;
use hugelift_core::maps::Mapping;
use hugelift_core::plan::{Plan, Span, plan};
use hugelift_core::policy::{Backing, PageChoice, Policy, SpanChoice};
use hugelift_core::printable::Untrusted;
use hugelift_core::relocate::base::{Base, congruent_residue};
use hugelift_core::relocate::{Image, Move, NotMoved};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{Machine, Object, Part, Snapshot};
use hugelift_core::target::Fault;
use hugelift_os::launch::base::{Aim, Executable, Wanted, aim};
use hugelift_os::launch::bypass::Bypass;
use hugelift_os::launch::guard::{Guard, Unguarded};
use hugelift_os::launch::helper::{LiftHooks, Verdict};
use hugelift_os::machine::{self, base_page, folios, thp_page};
use hugelift_os::proc::procfs::Process;
use hugelift_os::proc::snapshot;
use hugelift_os::trace::remote::Remote;
use hugelift_os::watch::observer::cpu_time;
use hugelift_os::watch::watcher::Watcher;
use hugelift_os::{launch, pagecache, store};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the helper has to do.
pub struct LiftJob {
    pub(super) program: Untrusted,
    pub(super) policy: Policy,
    /// Bytes that the user says the program can do without.
    spare: u64,
    pub(super) choosing: Choosing,
    /// What becomes of huge pages that are split after a fork.
    pub(super) after_fork: AfterFork,
    /// A child of a lifted program: of its runs nothing is noted.
    pub(super) is_child: bool,
    /// Who looks at the program when it runs.
    pub(super) watcher: Option<Watcher>,
    pub(super) strict: bool,
    pub(super) verbosity: Verbosity,
    pub(super) report: Option<File>,
    /// What could not be brought into huge folios before the start.
    pub(super) unprimed: Option<String>,
    /// All that it needs is in huge folios.
    pub(super) primed: bool,
    /// The base that the executable is moved to, and what for.
    pub(super) aim: Option<Aim>,
    /// Why it has another base than it should have.
    pub(super) unmoved: Option<String>,
    /// Why the move failed.
    pub(super) stayed: Option<Fault>,
    /// Why data is not taken from the pool although it was asked for.
    pub(super) unguarded: Option<String>,
    /// How copied code is named for perf, if it is.
    pub(super) perf_map: Option<Names>,
    /// Orphans become the program's children.
    pub(super) adopts: bool,
    /// Size of a transparent huge page.
    pub(super) huge: Option<PageSize>,
    /// What there is, if there was time to find out.
    pub(super) machine: Option<Machine>,
}

impl LiftHooks for &mut LiftJob {
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
        if let Some(watcher) = self.watcher.take() {
            watcher.stay();
        }
    }

    fn bypass(&mut self, why: &Bypass) -> Verdict {
        (**self).bypass(why)
    }
}

impl LiftJob {
    /// The job of lifting `program` as the options say.
    pub fn new(options: &LiftOptions, program: Untrusted, policy: Policy) -> LiftJob {
        LiftJob {
            program,
            spare: policy.spare,
            policy,
            choosing: Choosing::new(options),
            after_fork: options.after_fork,
            is_child: false,
            watcher: None,
            strict: options.strict,
            verbosity: options.verbosity,
            report: None,
            unprimed: None,
            primed: false,
            aim: None,
            unmoved: None,
            stayed: None,
            unguarded: None,
            perf_map: options.perf_map,
            adopts: false,
            huge: None,
            machine: None,
        }
    }

    /// The job of lifting `program`, a child of a lifted program.
    pub fn of_child(options: &LiftOptions, program: Untrusted, policy: Policy) -> LiftJob {
        let adopts = launch::adopts_orphans();
        LiftJob { is_child: true, adopts, ..LiftJob::new(options, program, policy) }
    }

    /// Brings the program's files into huge folios. Asked for by name only: dropping and reading
    /// them anew costs a large program a tenth of a second.
    pub(super) fn prime(&mut self, path: &Path) {
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
            if self.verbosity >= Verbosity::Summary {
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

    /// Chooses the base of the executable, and plans the move there if it has another one.
    fn place(&mut self, pid: u32, image: &Image, mappings: &[Mapping]) -> Option<Move> {
        let name = image.pieces.first().map(|m| m.path.clone())?;
        let exe = Process::new(pid).path("exe");
        let wanted = Wanted { policy: &self.policy, huge: self.huge };
        let executable =
            Executable { file: &exe, name: &name, headers: &image.headers, bias: Some(image.bias) };
        let aim = aim(&executable, wanted);
        let plan = aim.map(|aim| image.plan(mappings, aim.base, base_page()));
        tracing::debug!(?aim, stays = ?plan.as_ref().map(|p| p.as_ref().err()), "the executable's base");
        // One that should have been moved for the page cache, and is not, has something to say when it
        // is loaded.
        self.primed &= self.is_congruent(image) || matches!(plan, Some(Ok(_)));
        match plan {
            Some(Ok(plan)) => {
                self.aim = aim;
                Some(plan)
            }
            // What is linked for an address is there at each start: nothing to tell.
            Some(Err(NotMoved::There | NotMoved::Fixed)) | None => None,
            Some(Err(why)) => {
                self.unmoved = Some(why.to_string());
                None
            }
        }
    }

    /// Returns whether the page cache can be mapped by huge entries where the executable is, as far
    /// as that is possible anywhere.
    fn is_congruent(&self, image: &Image) -> bool {
        let Some(huge) = self.huge.filter(|huge| self.policy.page.allows(*huge)) else { return true };
        let congruent = congruent_residue(&image.headers, &self.policy.parts, huge, base_page());
        congruent.is_none_or(|residue| Base { residue, page: huge }.is_of(image.bias))
    }

    /// A heap that is to be lifted begins with a whole huge page.
    fn heap_page(&self) -> Option<PageSize> {
        thp_page().filter(|_| self.policy.parts.contains(&Part::Heap))
    }

    /// An executable that could not be moved stays, and its text with it: nothing is lost but
    /// the gain.
    fn placed(&mut self, result: Result<(), &Fault>) {
        self.stayed = result.err().cloned();
        self.unmoved = result.err().map(Fault::to_string);
    }

    /// What the page cache has needs no help at run time. Only to tell of it, or to be sure of it,
    /// the program must be looked at once it is loaded.
    fn is_done(&self) -> bool {
        let nothing_to_say = self.verbosity < Verbosity::Summary && self.report.is_none() && !self.strict;
        let only_read = !self.policy.parts.iter().any(|p| p.is_writable());
        let only_lifted = self.after_fork != AfterFork::Join;
        self.primed && only_read && only_lifted && self.stayed.is_none() && nothing_to_say
    }

    fn lift(&mut self, pid: u32, target: &mut Remote) -> Verdict {
        let began = Instant::now();
        let before = match self.look(pid, target) {
            Ok(before) => before,
            Err(why) => return self.bypass(&why),
        };
        let (mut chosen, guard) = self.choose(pid, &before);
        if let Some(fault) = &self.stayed {
            blame(&mut chosen.plan, self.aim.map_or(Backing::Pagecache, |aim| aim.backing), fault);
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
        if let Err(refused) = self.complain(&before, &chosen, &outcome) {
            return refused;
        }
        if let Some(names) = self.perf_map {
            self.name_code(pid, &before, plan, &outcome, names);
        }
        self.tell(pid, &before, plan, &outcome, took);
        self.watcher = self.start_watcher(pid, &before, chosen, &outcome, lift);
        Verdict::Start
    }

    /// The program as it is before the lift, and what of it is huge without a copy.
    fn look(&mut self, pid: u32, target: &mut Remote) -> Result<Snapshot, Bypass> {
        let least = match self.policy.page {
            PageChoice::Usual => PageSize::MB2.bytes() / 2,
            PageChoice::Mixed => base_page().bytes(),
            PageChoice::Only(page) => page.bytes(),
        };
        let everything = self.report.is_some()
            || self.policy.span != SpanChoice::Inner
            || self.policy.parts.iter().any(|p| p.is_writable());
        let least = if everything { 0 } else { least };
        let status = target.status()?;
        let mut machine = self.machine.take().unwrap_or_else(|| machine::probe(Some(pid)));
        machine::update(&mut machine, &status);
        let mut before = snapshot::of(Process::new(pid), least, machine, &status)?;
        if self.policy.page != PageChoice::Usual {
            before.machine.folios = folios();
        }
        if self.policy.backings.contains(&Backing::Pagecache) {
            let takes = |object: &Object| self.policy.objects.takes(object);
            pagecache::find(Some(pid), &mut before, &self.policy.parts, takes);
        }
        if self.policy.backings.contains(&Backing::Shared) {
            let offer = store::offer(pid, &before, &self.policy);
            before.stored = offer.stored;
            self.spend(&mut before.machine, offer.made);
            target.offer_stored(offer.files);
        }
        Ok(before)
    }

    /// Takes what the store has got for its entries out of what the lift may have.
    fn spend(&mut self, machine: &mut Machine, bytes: u64) {
        machine.memory_left = machine.memory_left.saturating_sub(bytes);
        if let Some(limit) = &mut machine.memory_limit {
            limit.left = limit.left.saturating_sub(bytes);
            self.policy.spare = self.policy.spare.saturating_sub(bytes);
        }
    }

    /// Whether all memory that a control group's limit leaves is the program's: then nobody stays
    /// beside it, because his memory would be charged to the same limit.
    pub(super) fn leaves_all_memory(&self, before: &Snapshot) -> bool {
        before.machine.memory_limit.is_some() && self.spare == 0
    }

    /// What is lifted; and the guard of fork(2), where one is needed for it.
    fn choose(&mut self, pid: u32, before: &Snapshot) -> (Chosen, Option<Guard>) {
        let guard = self.takes_data_from_pool().then(|| self.guard(pid, before)).flatten();
        let mut all = plan(before, &self.policy);
        if let Some(Err(why)) = guard.as_ref().map(|guard| guard.tell(&planned_on_pool(&all))) {
            self.leave_pool(&why.to_string());
            all = plan(before, &self.policy);
        }
        (choose(self.choosing, Some(pid), before, &self.policy, all), guard)
    }

    /// Whether data or bss is to be on pages of the pool, where fork(2) needs a guard.
    pub(super) fn takes_data_from_pool(&self) -> bool {
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
    pub(super) fn leave_pool(&mut self, why: &str) {
        self.policy.data_backings = vec![Backing::Thp];
        self.unguarded = Some(why.to_string());
    }
}

/// Gives the move that failed as the reason for what it would have made huge: for the page cache all
/// of the executable, for copies the largest end of a part, if the user can do something about it.
fn blame(plan: &mut Plan, backing: Backing, fault: &Fault) {
    let failed = Reason::Failed(backing, fault.clone());
    let own = plan.skips.iter_mut().filter(|skip| skip.object == 0);
    if backing == Backing::Pagecache {
        own.filter(|s| s.reason == Reason::NotPrimed).for_each(|skip| skip.reason = failed.clone());
    } else if fault.hint().is_some()
        && let Some(skip) = own.filter(|s| s.reason.is_of_an_edge()).max_by_key(|s| s.range.len())
    {
        skip.reason = failed;
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
