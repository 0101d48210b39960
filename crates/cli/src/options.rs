// SPDX-License-Identifier: Apache-2.0
//! Options that several subcommands share, each defined once.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use hugelift_core::demangle::Names;
use hugelift_core::heat::follow::Limits;
use hugelift_core::policy::{Backing, PageChoice, Policy, SpanChoice};
use hugelift_core::quantity;
use hugelift_core::snapshot::Part;
use hugelift_lift::options::{AfterFork, Children, DataBacking, Malloc, Numa, PolicyOptions, Seccomp};

/// Headings of the help, each above a group of options.
pub mod heading {
    /// Which memory is lifted.
    pub const WHAT: &str = "What is lifted";
    /// Where huge pages come from, and how many.
    pub const PAGES: &str = "Huge pages";
    /// How the program runs.
    pub const PROGRAM: &str = "How the program runs";
    /// Which processes are meant.
    pub const SELECT: &str = "Which processes";
    /// How long it goes on, and what it may cost.
    pub const WATCH: &str = "How long, and at which cost";
    /// When there are enough pairs.
    pub const ENOUGH: &str = "When it ends";
    /// Options for servers under a load.
    pub const SERVER: &str = "Servers";
    /// Options for a process that runs.
    pub const LIVE: &str = "A process that runs";
    /// What is printed or written.
    pub const OUTPUT: &str = "Output";
}

/// The words of an option: each with its help and what it means.
pub type Words<T> = [(&'static str, &'static str, T)];

/// Returns what reads one of the words.
pub fn one_of<T: Copy + Send + Sync + 'static>(words: &'static Words<T>) -> impl TypedValueParser<Value = T> {
    let shown = words.iter().map(|(word, help, _)| match *help {
        "" => PossibleValue::new(*word),
        help => PossibleValue::new(*word).help(help),
    });
    PossibleValuesParser::new(shown).map(|given| {
        let (.., meant) = words.iter().find(|(word, ..)| *word == given).expect("clap has found it");
        *meant
    })
}

/// `--whole` and `--budget`
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct CopyArgs {
    /// Copy all of text and rodata. Without it only the code in use is copied: the process is sampled where it executes,
    /// and the huge pages that hold 99 % of its samples are copied. What the page cache or the store has is used as ever
    #[arg(long, help_heading = heading::WHAT)]
    whole: bool,

    /// Memory that copies of the code in use may take in a process, as in 64M; the hottest pages come first
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "whole", help_heading = heading::WHAT)]
    budget: Option<u64>,
}

impl CopyArgs {
    /// Returns the limits within which the code in use is copied; `None` if all code is wanted.
    pub fn limits(self) -> Option<Limits> {
        let budget = self.budget.unwrap_or(u64::MAX);
        (!self.whole).then_some(Limits { budget, ..Limits::NONE })
    }
}

/// `--backing`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackingChoice {
    /// The page cache where it is huge, else a copy in the store, which is made if need be, else
    /// transparent huge pages
    Auto,
    /// The file's own page cache, primed if need be: no copy
    Pagecache,
    /// One copy for all processes, in the store
    Shared,
    /// Transparent huge pages
    Thp,
    /// Pages of the reserved pool
    Hugetlb,
}

/// `--parts`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartChoice {
    /// Code
    Text,
    /// Read-only data
    Rodata,
    /// Initialised data, also what is read-only after relocation
    Data,
    /// Data that is zero at the start
    Bss,
    /// What brk(2) manages
    Heap,
    /// The first thread's stack
    Stack,
    /// Anonymous memory that the program maps itself, by any allocator: collapsed while it runs
    Anon,
    /// Shared memory, for all processes that share it: collapsed while it runs
    Shm,
    /// Code that the program generates while it runs (a JIT compiler's): collapsed while it runs. 'all' does not include
    /// it
    Jit,
    /// The files that it has mapped, code and data, for all processes: put on huge pages of the page cache, as prime --pid
    /// does. Only attach takes this part, and 'all' does not include it
    Files,
    /// All of these but jit and files
    All,
}

impl PartChoice {
    /// Returns the parts that it means.
    pub fn parts(self) -> &'static [Part] {
        match self {
            PartChoice::Text => &[Part::Text],
            PartChoice::Rodata => &[Part::Rodata],
            PartChoice::Data => &[Part::Relro, Part::Data],
            PartChoice::Bss => &[Part::Bss],
            PartChoice::Heap => &[Part::Heap],
            PartChoice::Stack => &[Part::Stack],
            PartChoice::Anon => &[Part::Anon],
            PartChoice::Shm => &[Part::Shm],
            PartChoice::Jit => &[Part::Jit],
            // It is no memory of the process's own.
            PartChoice::Files => &[],
            PartChoice::All => &Part::ALL,
        }
    }
}

/// `--malloc`
pub const MALLOC: &Words<Malloc> = &[
    ("auto", "As thp if the heap is among the parts to lift, else off", Malloc::Auto),
    ("off", "Leave the environment as it is", Malloc::Off),
    ("thp", "Ask for transparent huge pages", Malloc::Thp),
    ("hugetlb", "Ask for pages of the reserved pool where the allocator can use them", Malloc::Hugetlb),
];

/// `--data-backing`
const DATA_BACKING: &Words<DataBacking> = &[
    ("thp", "Transparent huge pages: after fork(2), a write copies 4 kB", DataBacking::Thp),
    (
        "hugetlb",
        "Pages of the reserved pool: a write after fork(2) copies one of them, if there is one left",
        DataBacking::Hugetlb,
    ),
];

/// `--page-size`
fn page_choice(s: &str) -> Result<PageChoice, String> {
    match s {
        "auto" => Ok(PageChoice::Mixed),
        size => size.parse().map(PageChoice::Only),
    }
}

/// `--spare`, `--budget` and `--total`: a size in bytes, as in 64M
pub fn size(s: &str) -> Result<u64, String> {
    quantity::bytes(s)
}

/// `--span`
const SPAN: &Words<SpanChoice> = &[
    ("inner", "Whole huge pages inside a part", SpanChoice::Inner),
    (
        "outer",
        "Also the first and the last, which reach over unmapped space and neighbours of the same protection",
        SpanChoice::Outer,
    ),
    (
        "auto",
        "As outer, but only pages that are at least half full and that no processes share",
        SpanChoice::Auto,
    ),
];

/// The options for what to lift, and onto what.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct PolicyArgs {
    /// Where huge pages come from
    #[arg(long, value_enum, default_value_t = BackingChoice::Auto, help_heading = heading::PAGES)]
    pub backing: BackingChoice,

    /// Size of the huge pages, as in 2M or 1G; auto mixes all available sizes, large ones first
    /// [default: the usual one of the backing]
    #[arg(long, value_name = "SIZE|auto", value_parser = page_choice, help_heading = heading::PAGES)]
    pub page_size: Option<PageChoice>,

    /// Parts of the program to lift
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PartChoice::Text, PartChoice::Rodata],
          help_heading = heading::WHAT)]
    pub parts: Vec<PartChoice>,

    /// Where huge pages for writable parts come from
    #[arg(long, value_parser = one_of(DATA_BACKING), default_value = "thp", help_heading = heading::PAGES)]
    pub data_backing: DataBacking,

    /// NUMA nodes to have copies and writable memory on: local, interleave, or a list as in 0-1; or each, for one copy of
    /// code in the store for each node, of which a process maps the nearest
    /// [default: as the program's own memory policy says]
    #[arg(long, value_name = "local|interleave|each|NODES", help_heading = heading::PAGES)]
    pub numa: Option<Numa>,

    /// Memory under a control group's limit that the program can do without, as in 64M: this much
    /// may go into copies. Without it, copies take none of the memory that the limit leaves
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = heading::PAGES)]
    pub spare: Option<u64>,

    /// What becomes of the first and the last huge page of a part, which it fills partly
    #[arg(long, value_parser = one_of(SPAN), default_value = "inner", help_heading = heading::WHAT)]
    pub span: SpanChoice,

    /// Lift only objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB", help_heading = heading::WHAT)]
    pub object: Vec<String>,

    /// Do not lift objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB", help_heading = heading::WHAT)]
    pub exclude: Vec<String>,
}

impl Default for PolicyArgs {
    /// What clap returns where no option is given.
    fn default() -> PolicyArgs {
        PolicyArgs {
            backing: BackingChoice::Auto,
            page_size: None,
            parts: vec![PartChoice::Text, PartChoice::Rodata],
            data_backing: DataBacking::Thp,
            numa: None,
            spare: None,
            span: SpanChoice::Inner,
            object: Vec::new(),
            exclude: Vec::new(),
        }
    }
}

/// `--after-fork`
pub const AFTER_FORK: &Words<AfterFork> = &[
    (
        "auto",
        "As join if writable parts are lifted onto transparent huge pages, and it is permitted",
        AfterFork::Auto,
    ),
    ("join", "Join them, once no other process maps them", AfterFork::Join),
    ("leave", "Leave them to the kernel", AfterFork::Leave),
];

/// `--perf-map`
pub const NAMES: &Words<Names> = &[
    ("demangled", "As in the source", Names::Demangled),
    ("mangled", "As in the symbol table", Names::Mangled),
];

/// `--children`
pub const CHILDREN: &Words<Children> = &[
    ("lift", "As hugelift would lift the program", Children::Lift),
    ("plain", "As they are", Children::Plain),
];

/// `--seccomp`
pub const SECCOMP: &Words<Seccomp> = &[
    (
        "auto",
        "Lift the program if it is known that the filter lets a process fork, and a child has survived the calls of a \
         lift; else start it as it is",
        Seccomp::Auto,
    ),
    (
        "try",
        "Fork without knowing that the filter allows it; a filter that does not may kill the program",
        Seccomp::Try,
    ),
];

impl From<BackingChoice> for Option<Backing> {
    fn from(choice: BackingChoice) -> Option<Backing> {
        match choice {
            BackingChoice::Auto => None,
            BackingChoice::Pagecache => Some(Backing::Pagecache),
            BackingChoice::Shared => Some(Backing::Shared),
            BackingChoice::Thp => Some(Backing::Thp),
            BackingChoice::Hugetlb => Some(Backing::Hugetlb),
        }
    }
}

impl From<PolicyArgs> for PolicyOptions {
    fn from(args: PolicyArgs) -> PolicyOptions {
        let PolicyArgs { backing, page_size, parts, data_backing, numa, spare, span, object, exclude } = args;
        PolicyOptions {
            backing: backing.into(),
            page: page_size.unwrap_or_default(),
            parts: parts.iter().flat_map(|choice| choice.parts()).copied().collect(),
            data_backing,
            numa,
            spare: spare.unwrap_or_default(),
            span,
            objects: object,
            excluded: exclude,
        }
    }
}

impl PolicyArgs {
    /// Returns whether the files are wanted that a process has mapped.
    pub fn files(&self) -> bool {
        self.parts.contains(&PartChoice::Files)
    }

    /// Checks that they are not wanted.
    ///
    /// # Errors
    /// One line with the commands that take files.
    pub fn no_files(&self) -> Result<(), String> {
        match self.files() {
            true => Err("--parts files is for processes that run: 'hugelift attach --parts files PID'; 'hugelift prime FILE' \
                         takes files before anything maps them"
                .into()),
            false => Ok(()),
        }
    }

    /// Returns the policy for the planner.
    ///
    /// # Errors
    /// A pattern is malformed, this process is not allowed to use the memory nodes, or files are wanted.
    pub fn policy(&self) -> Result<Policy, String> {
        self.no_files()?;
        PolicyOptions::from(self.clone()).policy()
    }
}
