// SPDX-License-Identifier: Apache-2.0
//! What is asked of a lift: by a command line, or by a caller of this crate.
//!
//! [`PolicyOptions`] are for everything that plans, [`LiftOptions`] for everything that lifts,
//! [`StartOptions`] for `hugelift run`.

use hugelift_core::demangle::Names;
use hugelift_core::heat::follow::Limits;
use hugelift_core::placement::{Nodes, Placement};
use hugelift_core::policy::{self, Backing, Copies, ObjectFilter, PageChoice, Policy, SpanChoice};
use hugelift_core::snapshot::Part;
use hugelift_linux::machine::nodes;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// What to lift, and onto what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOptions {
    /// Where huge pages come from; `None` tries [`policy::AUTO`].
    pub backing: Option<Backing>,
    /// Sizes of pages.
    pub page: PageChoice,
    /// The parts to lift.
    pub parts: Vec<Part>,
    /// Where huge pages for writable parts come from.
    pub data_backing: DataBacking,
    /// Where copies and writable memory are to lie; `None` follows the program's own memory policy.
    pub numa: Option<Numa>,
    /// Bytes that the program can do without where a control group limits its memory.
    pub spare: u64,
    /// What becomes of the first and the last huge page of a part.
    pub span: SpanChoice,
    /// Patterns of the objects to lift; without any, all are.
    pub objects: Vec<String>,
    /// Patterns of the objects not to lift.
    pub excluded: Vec<String>,
}

/// Where huge pages for writable parts come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataBacking {
    /// Transparent huge pages.
    Thp,
    /// Pages of the reserved pool.
    Hugetlb,
}

/// On which memory nodes copies and writable memory are to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numa {
    /// On the node where the program runs.
    Local,
    /// On each node in turn.
    Interleave,
    /// Of the store's copies, on the node nearest to each process. All else follows the program's own memory policy.
    Each,
    /// On these nodes.
    On(Nodes),
}

/// How a process is lifted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiftOptions {
    /// What to lift, and onto what.
    pub policy: PolicyOptions,
    /// Text and rodata are copied at the start, and not when the program has run for a while.
    pub eager: bool,
    /// Only the code in use is copied, within these limits, while the program runs, unless all is copied at the start.
    pub hot: Option<Limits>,
    /// What becomes of huge pages that writes after fork(2) have split.
    pub after_fork: AfterFork,
    /// How copied code is named for perf(1), if it is.
    pub perf_map: Option<Names>,
    /// The program must not start unless all that was planned is lifted.
    pub strict: bool,
    /// How much is written to stderr.
    pub verbosity: Verbosity,
}

/// What becomes of huge pages that writes after fork(2) have split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFork {
    /// They are joined if writable parts are lifted onto transparent huge pages, and it is permitted.
    Auto,
    /// They are joined, once no other process has them.
    Join,
    /// They are left to the kernel.
    Leave,
}

/// How much is written to stderr, each including what the one before writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verbosity {
    /// Nothing.
    Quiet,
    /// What was not lifted although it might have been.
    Problems,
    /// Also what was lifted.
    Summary,
    /// Also each object and each skip.
    Everything,
}

/// How a program is started, and lifted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartOptions {
    /// How it is lifted.
    pub lift: LiftOptions,
    /// The program, looked up on PATH, and its arguments: one word at least.
    pub command: Vec<OsString>,
    /// The user, and perhaps the group, to run it as.
    pub user: Option<String>,
    /// What its allocator is asked for.
    pub malloc: Malloc,
    /// What becomes of the programs that it starts itself.
    pub children: Children,
    /// Pages of the pool that are kept for what a forked child writes.
    pub fork_reserve: u64,
    /// What is done under a seccomp filter.
    pub seccomp: Seccomp,
    /// The file for what smaps shows after the lift, as JSON.
    pub report: Option<PathBuf>,
    /// Print what would be done, and start nothing.
    pub dry_run: bool,
}

/// What the program's allocator is asked for, by its variable of the environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malloc {
    /// Transparent huge pages if the heap is among the parts to lift, else nothing.
    Auto,
    /// Nothing.
    Off,
    /// Transparent huge pages.
    Thp,
    /// Pages of the reserved pool, where it can use them.
    Hugetlb,
}

/// What becomes of the programs that the program starts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Children {
    /// They are lifted as the program is.
    Lift,
    /// They are started as they are.
    Plain,
}

/// What is done under a seccomp filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seccomp {
    /// The program is lifted if it is known that the filter lets a process fork.
    Auto,
    /// A fork is tried, for which the filter may kill the program.
    Try,
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(s: &str) -> Result<Numa, String> {
        Ok(match s {
            "local" => Numa::Local,
            "interleave" => Numa::Interleave,
            "each" => Numa::Each,
            list => Numa::On(list.parse()?),
        })
    }
}

impl Numa {
    /// Returns the placement for the planner, if the program's own memory policy does not decide.
    ///
    /// # Errors
    /// This process is not allowed to use the nodes, or the kernel has no nodes.
    fn placement(self) -> Result<Option<Placement>, String> {
        match (self, nodes::allowed()?) {
            (Numa::Each, _) => Ok(None),
            (_, None) => Err("--numa: this kernel knows no memory nodes (CONFIG_NUMA)".into()),
            (Numa::Local, _) => Ok(Some(Placement::Local)),
            (Numa::Interleave, Some(allowed)) => Ok(Some(Placement::Interleave(allowed))),
            (Numa::On(nodes), Some(allowed)) if nodes.without(allowed).is_empty() => {
                Ok(Some(Placement::On(nodes)))
            }
            (Numa::On(nodes), Some(allowed)) => Err(format!(
                "--numa {nodes}: node {} is not among those that it may use, {allowed}; \
                 see 'hugelift pool' and cpuset.mems",
                nodes.without(allowed)
            )),
        }
    }
}

impl PolicyOptions {
    /// Returns which objects are meant. Makes no system call.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn object_filter(&self) -> Result<ObjectFilter, String> {
        ObjectFilter::new(&self.objects, &self.excluded)
    }

    /// Returns whether text may be copied: then it matters which of it is in use.
    pub fn copies_text(&self) -> bool {
        self.parts.contains(&Part::Text) && self.backing != Some(Backing::Pagecache)
    }

    /// Returns the policy for the planner.
    ///
    /// # Errors
    /// A pattern is malformed, or this process is not allowed to use the memory nodes.
    pub fn policy(&self) -> Result<Policy, String> {
        let per_node = self.numa == Some(Numa::Each) && nodes::are_several();
        let backings = match self.backing {
            // The page cache has one copy of a file, on any node.
            None if per_node => vec![Backing::Shared, Backing::Thp],
            None if self.numa == Some(Numa::Each) => policy::AUTO.to_vec(),
            // What the page cache or the store holds stays on the nodes where it is.
            None if self.numa.is_some() => vec![Backing::Thp],
            None => policy::AUTO.to_vec(),
            Some(backing) => vec![backing],
        };
        Ok(Policy {
            parts: self.parts.clone(),
            objects: self.object_filter()?,
            within: None,
            backings,
            data_backings: match self.data_backing {
                DataBacking::Thp => vec![Backing::Thp],
                DataBacking::Hugetlb => vec![Backing::Hugetlb, Backing::Thp],
            },
            span: match self.data_backing {
                // The fork guard copies while the C library may write to its own data, which must
                // therefore not be in a span on the pool.
                DataBacking::Hugetlb => SpanChoice::Inner,
                DataBacking::Thp => self.span,
            },
            page: self.page,
            placement: self.numa.map(Numa::placement).transpose()?.flatten(),
            per_node,
            copies: Copies::All,
            spare: self.spare,
        })
    }
}

impl LiftOptions {
    /// Returns whether text and rodata are copied at the start. That is so if the user has asked for it, for a
    /// backing, or for something that shows the copies at the start; and not if the memory for copies is limited: only
    /// the program's run shows which of its code they are to hold.
    pub fn copies_at_start(&self) -> bool {
        let asked = self.eager || self.strict || self.policy.backing.is_some() || self.perf_map.is_some();
        asked && self.hot.is_none_or(Limits::is_unlimited)
    }

    /// Returns the limits within which the code in use is copied while the program runs; `None` if all code is copied, at
    /// the start or later.
    pub fn copies_hot(&self) -> Option<Limits> {
        self.hot.filter(|_| self.policy.copies_text() && !self.copies_at_start())
    }
}

impl StartOptions {
    /// Returns the policy if it lifts nothing but whole huge pages of one size in the text and the
    /// read-only data of the program itself. Its files then show before the start whether there are any.
    pub fn lifts_files_alone(&self) -> Option<Policy> {
        let nothing_else = self.children == Children::Plain
            && self.malloc == Malloc::Auto
            && self.lift.after_fork == AfterFork::Auto;
        let policy = self.lift.policy.policy().ok()?;
        let files = policy.parts.iter().all(|part| matches!(part, Part::Text | Part::Rodata));
        let whole = policy.span == SpanChoice::Inner && policy.page != PageChoice::Mixed;
        (nothing_else && files && whole).then_some(policy)
    }
}
