// SPDX-License-Identifier: Apache-2.0
//! Options that several subcommands share, each defined once.

use clap::{Args, ValueEnum};
use hugelift_core::demangle::Names;
use hugelift_core::placement::{Nodes, Placement};
use hugelift_core::policy::{self, Backing, Copies, ObjectFilter, PageChoice, Policy};
use hugelift_core::quantity;
use hugelift_core::snapshot::Part;
use hugelift_os::machine::nodes;
use std::str::FromStr;

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
    /// All of these
    All,
}

impl PartChoice {
    fn parts(self) -> &'static [Part] {
        const ALL: [Part; 7] =
            [Part::Text, Part::Rodata, Part::Relro, Part::Data, Part::Bss, Part::Heap, Part::Stack];
        match self {
            PartChoice::Text => &[Part::Text],
            PartChoice::Rodata => &[Part::Rodata],
            PartChoice::Data => &[Part::Relro, Part::Data],
            PartChoice::Bss => &[Part::Bss],
            PartChoice::Heap => &[Part::Heap],
            PartChoice::Stack => &[Part::Stack],
            PartChoice::All => &ALL,
        }
    }
}

/// `--malloc`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MallocChoice {
    /// As thp if the heap is among the parts to lift, else off
    Auto,
    /// Leave the environment as it is
    Off,
    /// Ask for transparent huge pages
    Thp,
    /// Ask for pages of the reserved pool where the allocator can use them
    Hugetlb,
}

/// `--data-backing`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataBackingChoice {
    /// Transparent huge pages: after fork(2), a write copies 4 kB
    Thp,
    /// Pages of the reserved pool: a write after fork(2) copies one of them, if there is one left
    Hugetlb,
}

/// `--numa`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaChoice {
    /// Where the program runs.
    Local,
    /// Each node in turn.
    Interleave,
    /// These nodes.
    On(Nodes),
}

impl FromStr for NumaChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<NumaChoice, String> {
        Ok(match s {
            "local" => NumaChoice::Local,
            "interleave" => NumaChoice::Interleave,
            list => NumaChoice::On(list.parse()?),
        })
    }
}

impl NumaChoice {
    /// As the planner wants it.
    ///
    /// # Errors
    /// Nodes that the process may not use, or a kernel that knows none.
    fn placement(self) -> Result<Placement, String> {
        let Some(allowed) = nodes::allowed()? else {
            return Err("--numa: this kernel knows no memory nodes (CONFIG_NUMA)".into());
        };
        match self {
            NumaChoice::Local => Ok(Placement::Local),
            NumaChoice::Interleave => Ok(Placement::Interleave(allowed)),
            NumaChoice::On(nodes) if nodes.without(allowed).is_empty() => Ok(Placement::On(nodes)),
            NumaChoice::On(nodes) => Err(format!(
                "--numa {nodes}: node {} is not among those that it may use, {allowed}; \
                 see 'hugelift pool' and cpuset.mems",
                nodes.without(allowed)
            )),
        }
    }
}

/// `--page-size`
fn page_choice(s: &str) -> Result<PageChoice, String> {
    match s {
        "auto" => Ok(PageChoice::Mixed),
        size => size.parse().map(PageChoice::Only),
    }
}

/// `--spare`
fn size(s: &str) -> Result<u64, String> {
    quantity::bytes(s)
}

/// `--span`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpanChoice {
    /// Whole huge pages inside a part
    Inner,
    /// Also the first and the last, over unmapped space and neighbours of the same protection
    Outer,
    /// Of these, those that are at least half full and not shared by processes
    Auto,
}

/// What to lift, and onto what.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// Where huge pages come from
    #[arg(long, value_enum, default_value_t = BackingChoice::Auto)]
    pub backing: BackingChoice,

    /// Size of the huge pages, as in 2M or 1G; auto mixes all that there are, large ones first
    /// [default: the usual one of the backing]
    #[arg(long, value_name = "SIZE|auto", value_parser = page_choice)]
    pub page_size: Option<PageChoice>,

    /// Parts of the program to lift
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PartChoice::Text, PartChoice::Rodata])]
    pub parts: Vec<PartChoice>,

    /// Where huge pages for writable parts come from
    #[arg(long, value_enum, default_value_t = DataBackingChoice::Thp)]
    pub data_backing: DataBackingChoice,

    /// NUMA nodes to have copies and writable memory on: local, interleave, or a list as in 0-1
    /// [default: as the program's own memory policy says]
    #[arg(long, value_name = "local|interleave|NODES")]
    pub numa: Option<NumaChoice>,

    /// Memory under a control group's limit that the program can do without, as in 64M: so much
    /// may go into copies. Without it, what the limit leaves is the program's
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub spare: Option<u64>,

    /// What becomes of the first and the last huge page of a part, which it fills partly
    #[arg(long, value_enum, default_value_t = SpanChoice::Inner)]
    pub span: SpanChoice,

    /// Lift only objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub object: Vec<String>,

    /// Do not lift objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
}

/// `--after-fork`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AfterForkChoice {
    /// As join if writable parts are lifted onto transparent huge pages, and it is permitted
    Auto,
    /// Join them, once no other process has them
    Join,
    /// Leave them to the kernel
    Leave,
}

/// `--perf-map`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NamesChoice {
    /// As in the source
    Demangled,
    /// As in the symbol table
    Mangled,
}

impl From<NamesChoice> for Names {
    fn from(choice: NamesChoice) -> Names {
        match choice {
            NamesChoice::Demangled => Names::Demangled,
            NamesChoice::Mangled => Names::Mangled,
        }
    }
}

/// `--children`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChildrenChoice {
    /// As hugelift would lift the program
    Lift,
    /// As they are
    Plain,
}

/// `--seccomp`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SeccompChoice {
    /// Lift it where the filter is seen to let a process fork, and a child has survived the calls of
    /// a lift; start it as it is elsewhere
    Auto,
    /// Fork without knowing that the filter allows it. One that does not may kill the program
    Try,
}

/// What clap calls a choice.
pub fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

impl PolicyArgs {
    /// The words of a command line that say the same.
    pub fn words(&self) -> Vec<String> {
        let PolicyArgs { backing, page_size, parts, data_backing, span, spare, numa, object, exclude } = self;
        let parts: Vec<String> = parts.iter().map(word).collect();
        let mut words = vec![
            format!("--backing={}", word(backing)),
            format!("--parts={}", parts.join(",")),
            format!("--data-backing={}", word(data_backing)),
            format!("--span={}", word(span)),
        ];
        let size = page_size.and_then(|choice| match choice {
            PageChoice::Usual => None,
            PageChoice::Mixed => Some("auto".to_string()),
            PageChoice::Only(size) => Some(size.bytes().to_string()),
        });
        words.extend(size.map(|size| format!("--page-size={size}")));
        words.extend(spare.map(|bytes| format!("--spare={bytes}")));
        words.extend(numa.map(|numa| match numa {
            NumaChoice::Local => "--numa=local".to_string(),
            NumaChoice::Interleave => "--numa=interleave".to_string(),
            NumaChoice::On(nodes) => format!("--numa={nodes}"),
        }));
        words.extend(object.iter().map(|glob| format!("--object={glob}")));
        words.extend(exclude.iter().map(|glob| format!("--exclude={glob}")));
        words
    }

    /// As the planner wants it.
    ///
    /// # Errors
    /// A pattern that is not one.
    pub fn policy(&self) -> Result<Policy, String> {
        let backings = match self.backing {
            // What is there already lies where it lies.
            BackingChoice::Auto if self.numa.is_some() => vec![Backing::Thp],
            BackingChoice::Auto => policy::AUTO.to_vec(),
            BackingChoice::Pagecache => vec![Backing::Pagecache],
            BackingChoice::Shared => vec![Backing::Shared],
            BackingChoice::Thp => vec![Backing::Thp],
            BackingChoice::Hugetlb => vec![Backing::Hugetlb],
        };
        Ok(Policy {
            parts: self.parts.iter().flat_map(|p| p.parts()).copied().collect(),
            objects: ObjectFilter::new(&self.object, &self.exclude)?,
            backings,
            data_backings: match self.data_backing {
                DataBackingChoice::Thp => vec![Backing::Thp],
                DataBackingChoice::Hugetlb => vec![Backing::Hugetlb, Backing::Thp],
            },
            span: match self.span {
                // A child's guard copies while the C library may write to its own data, which must
                // therefore not be in a span on the pool.
                _ if self.data_backing == DataBackingChoice::Hugetlb => policy::SpanChoice::Inner,
                SpanChoice::Inner => policy::SpanChoice::Inner,
                SpanChoice::Outer => policy::SpanChoice::Outer,
                SpanChoice::Auto => policy::SpanChoice::Auto,
            },
            page: self.page_size.unwrap_or_default(),
            placement: self.numa.map(NumaChoice::placement).transpose()?,
            copies: Copies::All,
            spare: self.spare.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Only {
        #[command(flatten)]
        policy: PolicyArgs,
    }

    /// What children are lifted with is what was asked for, whatever that was.
    #[test]
    fn the_words_say_the_same() {
        for line in [
            "",
            "--backing shared --page-size 2M --parts all",
            "--backing=hugetlb --page-size auto --numa 0-1 --data-backing hugetlb",
            "--spare 64M --parts text",
            "--numa local --object lib*.so --object b --exclude =c",
            "--numa interleave --parts text,heap,stack --span outer",
        ] {
            let parse = |words: Vec<String>| Only::try_parse_from(std::iter::once("x".into()).chain(words));
            let asked = parse(line.split_whitespace().map(String::from).collect()).unwrap().policy;
            let said = parse(asked.words()).unwrap().policy;
            assert_eq!(format!("{asked:?}"), format!("{said:?}"), "{line}");
        }
    }
}
