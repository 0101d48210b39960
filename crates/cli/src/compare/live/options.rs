// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift compare --pid`.

use crate::compare::enough::EnoughArgs;
use crate::compare::under_load::ServerArgs;
use crate::failure::Failure;
use crate::options::{BackingChoice, PartChoice, SECCOMP, Words, one_of};
use crate::process_id;
use clap::{Args, ValueEnum};
use hugelift_core::policy::{Copies, PageChoice, SpanChoice};
use hugelift_core::quantity;
use hugelift_core::snapshot::Part;
use hugelift_lift::attach::AttachOptions;
use hugelift_lift::options::{DataBacking, PolicyOptions, Seccomp};
use hugelift_measure::comparison::by_part::By;
use hugelift_measure::live::{Command, Metric, State};
use hugelift_measure::stopping::Rule;
use std::path::PathBuf;
use std::time::Duration;

/// How long the experiment takes unless an option says otherwise.
const USUAL: Duration = Duration::from_secs(60);
/// The length of a period, and what is left out after each switch.
const PERIOD: Duration = Duration::from_millis(500);
const SETTLE: Duration = Duration::from_millis(200);
/// The length of a period where a switch takes a few milliseconds. Neighbours that are so short differ least.
const SHORT: Duration = Duration::from_millis(50);

/// What else can be compared. Clap forgets that an option requires --pid where one of these excludes --pid.
const OTHERS: [&str; 2] = ["server", "command"];

/// What says how programs are started, or puts a load on them.
const OF_STARTS: [&str; 14] = [
    "variant",
    "figure",
    "prepare",
    "cleanup",
    "cpu",
    "bare_4k",
    "input",
    "output",
    "ignore_failure",
    "force",
    "ready",
    "load",
    "count",
    "latency",
];

/// Options to compare processes that run with themselves.
#[derive(Args, Debug)]
pub struct LiveArgs {
    /// Compare a process that runs: it is lifted and restored in random order within each pair of periods, as
    /// 'hugelift attach --whole' and 'hugelift restore' do it. At the end, after an error and at ctrl-C it is left as
    /// it was found. Without --metric and --cpu-per the verdict is on its CPU time per system call (as root), per
    /// call that reads or writes, voluntary context switch or byte, whichever is steady; if none is, on its CPU time per second, which
    /// needs a load that is the same in all periods
    #[arg(long, value_name = "PID", groups = ["subject", "live"], value_parser = process_id::parse,
          conflicts_with_all = OF_STARTS)]
    pub pid: Option<u32>,

    /// Compare the process and its descendants, as those of a server that forks: all are lifted and restored together
    #[arg(long, requires = "pid", conflicts_with_all = ["server", "command", "unit", "cgroup"])]
    pub children: bool,

    /// Compare the processes of a systemd unit together, as with --pid
    #[arg(long, value_name = "NAME", groups = ["subject", "live"], conflicts_with_all = OF_STARTS)]
    pub unit: Option<String>,

    /// Compare the processes of a control group and of those below it together, as with --pid. Its path is as in
    /// /proc/PID/cgroup, or below /sys/fs/cgroup
    #[arg(long, value_name = "PATH", groups = ["subject", "live"], conflicts_with_all = OF_STARTS)]
    pub cgroup: Option<PathBuf>,

    /// What --metric prints with --pid
    #[arg(long, value_enum, requires_all = ["live", "metric"], conflicts_with_all = OTHERS)]
    metric_kind: Option<KindChoice>,

    /// The verdict is on the CPU time of the process per unit of the counter that this shell command prints
    #[arg(long, value_name = "CMD", requires = "live", conflicts_with_all = ["metric", "server", "command"])]
    cpu_per: Option<String>,

    /// Compare page sizes alone: both sides have the same copy, mapped by huge pages or by small ones. A switch takes
    /// a few milliseconds, so that periods can be short and the interval is narrow. Where the CPU joins small pages that lie side
    /// by side (AMD Zen, AArch64), the gain against the file's own pages may be larger than what this shows
    #[arg(long, requires = "live", conflicts_with_all = OTHERS)]
    same_copy: bool,

    /// Find out which parts gain, with --same-copy: in each pair of periods a random half of them is on huge pages, then the
    /// other half. The intervals hold for all parts together
    #[arg(long, value_parser = one_of(BY), requires = "live", conflicts_with_all = ["html", "csv", "server", "command", "children", "unit", "cgroup"])]
    by: Option<By>,

    /// The length of a period [default: 500ms, with --same-copy 50ms]
    #[arg(long, value_name = "TIME", requires = "live", conflicts_with_all = OTHERS, value_parser = quantity::positive_duration)]
    period: Option<Duration>,

    /// What is left out after each switch [default: 200ms, with --same-copy 20ms]
    #[arg(long, value_name = "TIME", requires = "live", conflicts_with_all = OTHERS, value_parser = quantity::duration)]
    settle: Option<Duration>,

    /// Draws the same orders as an earlier experiment [default: a random number]
    #[arg(long, value_name = "N", requires = "live", conflicts_with_all = OTHERS)]
    seed: Option<u64>,

    /// How the process is left at the end, where nothing has failed [default: as it was found]
    #[arg(long, value_parser = one_of(LEAVE), requires = "live", conflicts_with_all = OTHERS)]
    leave: Option<State>,

    /// Where huge pages come from. 'restore' cannot undo pagecache, which auto leaves out here
    #[arg(long, value_enum, requires = "live", conflicts_with_all = OTHERS, default_value_t = BackingChoice::Auto)]
    backing: BackingChoice,

    /// Parts to lift: text and rodata, which 'restore' can undo; with --same-copy and --by also bss, heap and anon, which
    /// the program writes
    #[arg(long, value_enum, value_delimiter = ',', requires = "live", conflicts_with_all = OTHERS,
          default_values_t = [PartChoice::Text, PartChoice::Rodata])]
    parts: Vec<PartChoice>,

    /// Lift only objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB", requires = "live", conflicts_with_all = OTHERS)]
    object: Vec<String>,

    /// Do not lift objects whose path or file name matches (repeatable)
    #[arg(long, value_name = "GLOB", requires = "live", conflicts_with_all = OTHERS)]
    exclude: Vec<String>,

    /// What is done with a process under a seccomp filter, which may kill it for the system calls
    #[arg(long, value_parser = one_of(SECCOMP), requires = "live", conflicts_with_all = OTHERS, default_value = "auto")]
    seccomp: Seccomp,
}

/// `--by`
const BY: &Words<By> = &[
    ("part", "Text and rodata of each object", By::Part),
    ("object", "Each object", By::Object),
    (
        "heat",
        "Code in use, the rest of the code, and rodata of each object: the process is sampled for 5 s before",
        By::Heat,
    ),
];

/// `--metric-kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindChoice {
    /// A counter that grows: its growth per second is compared, and more is better
    Counter,
    /// A value of its own at the end of each period, such as a latency: less is better
    Gauge,
}

/// `--leave`
const LEAVE: &Words<State> = &[
    ("lifted", "With copies on huge pages", State::Lifted),
    ("bare", "With the pages of its files", State::Bare),
];

/// What is asked of a live experiment.
pub struct Options {
    /// How the process is lifted.
    pub attach: AttachOptions,
    /// Whether both sides have the same copies, by huge pages and by small ones.
    pub same_copy: bool,
    /// The memory that the program writes whose page size is changed too.
    pub memory: Vec<Part>,
    /// Into which parts the process is divided, if what each of them gains is asked for.
    pub by: Option<By>,
    /// What the verdict is on; `None`: what the process shows to be steady.
    pub metric: Option<Metric>,
    /// Whether more of it is better.
    pub higher_is_better: bool,
    /// The length of a period.
    pub period: Duration,
    /// What is left out after each switch.
    pub settle: Duration,
    /// The seed of the orders.
    pub seed: u64,
    /// How the process is left if nothing fails; `None`: as it was found.
    pub leave: Option<State>,
    /// Whether events are counted.
    pub counters: bool,
    /// When there are enough pairs.
    pub rule: Rule,
    /// The options that say how it is lifted, as on a command line of `hugelift attach`.
    pub words: Vec<String>,
}

impl Options {
    /// Takes over the options.
    ///
    /// # Errors
    /// One line: an option asks for what cannot be undone, or two do not go together.
    pub fn new(live: &LiveArgs, server: &ServerArgs, enough: &EnoughArgs) -> Result<Options, Failure> {
        if live.backing == BackingChoice::Pagecache {
            return Err(
                "--backing pagecache: 'hugelift restore' cannot undo it, so there would be no bare periods; \
                 use auto, shared, thp or hugetlb"
                    .into(),
            );
        }
        // What each part gains cannot be found out within a minute by moving bytes.
        let same_copy = live.same_copy || live.by.is_some();
        if same_copy && live.backing == BackingChoice::Hugetlb {
            let option = if live.same_copy { "--same-copy" } else { "--by" };
            return Err(format!(
                "{option}: a copy on pages of the pool cannot be mapped by small pages; use --backing auto, shared or thp"
            )
            .into());
        }
        let is_code = |part: &PartChoice| matches!(part, PartChoice::Text | PartChoice::Rodata);
        let is_memory =
            |part: &PartChoice| matches!(part, PartChoice::Bss | PartChoice::Heap | PartChoice::Anon);
        let is_possible = |part: &&PartChoice| is_code(part) || same_copy && is_memory(part);
        if let Some(part) = live.parts.iter().find(|part| !is_possible(part)) {
            let (name, helps) = (name(*part), if is_memory(part) { "; --same-copy compares it" } else { "" });
            return Err(format!(
                "--parts {name}: 'hugelift restore' undoes text and rodata alone, so there would be no bare periods{helps}"
            )
            .into());
        }
        let memory = live.parts.iter().filter(|part| is_memory(part)).flat_map(|choice| choice.parts());
        let metric = metric(live, server);
        let gauge = metric.as_ref().is_some_and(|metric| metric.gauge().is_some());
        if server.higher_is_better && !gauge {
            return Err("--higher-is-better: with --pid it is for --metric CMD --metric-kind gauge".into());
        }
        Ok(Options {
            attach: AttachOptions {
                policy: policy(live),
                seccomp: live.seccomp,
                cpu: Duration::ZERO,
                added: 0,
                copies_only: true,
                copies: Copies::All,
            },
            higher_is_better: server.higher_is_better || matches!(metric, Some(Metric::Counter { .. })),
            metric,
            same_copy,
            memory: memory.copied().collect(),
            by: live.by,
            period: live.period.unwrap_or(if same_copy { SHORT } else { PERIOD }),
            settle: live.settle.unwrap_or(if same_copy { SETTLE / 10 } else { SETTLE }),
            seed: live.seed.unwrap_or_else(|| fastrand::u64(..=u64::from(u32::MAX))),
            leave: live.leave,
            counters: false,
            rule: enough.rule_or(USUAL),
            words: words(live),
        })
    }

    /// Returns the sides, as in a pair: that on small pages is first, as in every comparison.
    pub fn sides(&self) -> [State; 2] {
        [if self.same_copy { State::Small } else { State::Bare }, State::Lifted]
    }
}

fn metric(live: &LiveArgs, server: &ServerArgs) -> Option<Metric> {
    let command = |option, line: &String| Command { option, line: line.clone() };
    match (&server.metric, &live.cpu_per) {
        (Some(line), _) => {
            let command = command("--metric", line);
            Some(match live.metric_kind.unwrap_or(KindChoice::Counter) {
                KindChoice::Counter => Metric::Counter { command },
                KindChoice::Gauge => Metric::Gauge { command },
            })
        }
        (None, Some(line)) => Some(Metric::CpuPer { command: command("--cpu-per", line) }),
        (None, None) => None,
    }
}

fn policy(live: &LiveArgs) -> PolicyOptions {
    PolicyOptions {
        backing: live.backing.into(),
        page: PageChoice::default(),
        parts: live
            .parts
            .iter()
            .flat_map(|choice| choice.parts())
            .filter(|part| matches!(part, Part::Text | Part::Rodata))
            .copied()
            .collect(),
        data_backing: DataBacking::Thp,
        numa: None,
        spare: 0,
        span: SpanChoice::Inner,
        objects: live.object.clone(),
        excluded: live.exclude.clone(),
    }
}

fn words(live: &LiveArgs) -> Vec<String> {
    let parts: Vec<String> = live.parts.iter().copied().map(name).collect();
    let mut words = vec!["--backing".into(), name(live.backing), "--parts".into(), parts.join(",")];
    for (option, globs) in [("--object", &live.object), ("--exclude", &live.exclude)] {
        words.extend(globs.iter().flat_map(|glob| [option.to_string(), glob.clone()]));
    }
    words
}

/// Returns the word for a value on the command line.
fn name(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}
