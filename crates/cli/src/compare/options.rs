// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift compare`.

use super::enough::EnoughArgs;
use super::live::LiveArgs;
use super::under_load::ServerArgs;
use crate::options::{Words, heading, one_of};
use crate::run::RunArgs;
use crate::starter::run_options;
use clap::{Args, ValueHint};
use hugelift_measure::comparison::Figure;
use hugelift_measure::program::Output;
use std::ffi::OsString;
use std::path::PathBuf;

/// Measure whether a program is faster when it is lifted
///
/// The program runs bare and lifted in turn, in random order within each pair. The ratio of
/// lifted to bare is the Hodges-Lehmann estimate over all pairs, with the 95 % interval of
/// Wilcoxon's signed-rank test, which assumes no distribution. What was on huge pages is read from
/// smaps on both sides. Where smaps shows no huge page, no gain is claimed. With --pid a process that runs
/// already is lifted and restored in turn.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A variant to compare with bare: its name, and options of `hugelift run` (repeatable)
    /// [default: lifted=--eager]. The name of a backing is enough: thp means
    /// thp='--backing thp'
    #[arg(long, value_name = "NAME='OPTIONS'", value_parser = variant)]
    pub variant: Vec<Variant>,

    /// The figure that the verdict compares [default: wall]
    #[arg(long, value_parser = one_of(FIGURE), conflicts_with = "server")]
    pub figure: Option<Figure>,

    /// Run this in a shell before each run; HUGELIFT_SIDE names the side
    #[arg(long, value_name = "CMD")]
    pub prepare: Option<String>,

    /// Run this in a shell at the end
    #[arg(long, value_name = "CMD")]
    pub cleanup: Option<String>,

    /// The CPUs that the program may use, as in 0,2-3
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub cpu: Option<Cpus>,

    /// Run the bare side without transparent huge pages: it has 4 kB pages only, also for its heap
    /// and where the page cache has larger ones
    #[arg(long)]
    pub bare_4k: bool,

    /// The program's standard input [default: empty]
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub input: Option<PathBuf>,

    /// Where the program's output goes: null, inherit, or the end of a file
    #[arg(long, value_name = "WHERE", default_value = "null", conflicts_with = "server")]
    pub output: String,

    /// Count page walks (where the CPU counts them), page faults, context switches and TLB flushes on both sides, and show
    /// them side by side. A server is counted under its load
    #[arg(long, conflicts_with = "by")]
    pub counters: bool,

    /// Also measure runs that end with another status than 0
    #[arg(short, long)]
    pub ignore_failure: bool,

    /// Measure even if there is nothing to lift
    #[arg(short, long)]
    pub force: bool,

    /// Print JSON, version 1 of the schema: every run, the ratios, the verdicts
    #[arg(long, conflicts_with = "csv", help_heading = heading::OUTPUT)]
    pub json: bool,

    /// Print every run as a line of comma-separated values
    #[arg(long, help_heading = heading::OUTPUT)]
    pub csv: bool,

    /// Write a picture of every pair, the interval and the distribution to FILE (-: to standard
    /// output): one HTML file that needs no network
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub html: Option<PathBuf>,

    /// The program, looked up on PATH, and its arguments
    #[arg(required_unless_present_any = ["server", "live"], conflicts_with_all = ["server", "live"],
          trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, value_names = ["CMD", "ARGS"])]
    pub command: Vec<OsString>,

    // Each heading also holds for the options behind it, so these are the last.
    #[command(flatten, next_help_heading = heading::ENOUGH)]
    pub enough: EnoughArgs,

    #[command(flatten, next_help_heading = heading::SERVER)]
    pub server: ServerArgs,

    #[command(flatten, next_help_heading = heading::LIVE)]
    pub live: LiveArgs,
}

/// `--figure`
const FIGURE: &Words<Figure> = &[
    ("wall", "From start to end", Figure::Wall),
    (
        "cpu",
        "CPU time of the program and of hugelift's helper: less disturbed by other programs",
        Figure::Cpu,
    ),
];

/// `--variant`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The name that is printed.
    pub name: String,
    /// Options of `hugelift run`.
    pub options: Vec<String>,
}

impl Variant {
    /// Returns the default variant: the whole program is lifted, even if `hugelift run` would find that
    /// it does not pay.
    pub fn usual() -> Variant {
        Variant { name: "lifted".into(), options: vec!["--eager".into()] }
    }

    /// Checks the options. In a run, `hugelift run` would print its complaint where it is not seen.
    ///
    /// # Errors
    /// `hugelift run` does not accept the options.
    pub fn check(&self) -> anyhow::Result<()> {
        let Err(error) = self.run_args() else { return Ok(()) };
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default().trim_start_matches("error: ");
        anyhow::bail!("--variant {}: {why}", self.name)
    }

    /// Parses its options.
    ///
    /// # Errors
    /// `hugelift run` does not accept them.
    pub fn run_args(&self) -> Result<RunArgs, clap::Error> {
        let options = self.options.iter().map(String::as_str);
        run_options(options.chain(["--", "true"]).map(OsString::from))
    }
}

fn variant(text: &str) -> Result<Variant, String> {
    let (name, options) = match text.split_once('=') {
        Some((name, options)) => (name, options.to_string()),
        None => (text, format!("--backing {text}")),
    };
    if name.is_empty() || name == "bare" {
        return Err("a variant needs a name, and not 'bare': thp='--backing thp'".into());
    }
    let options = shell_words::split(&options).map_err(|e| e.to_string())?;
    Ok(Variant { name: name.into(), options })
}

/// `--cpu`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpus(pub Vec<usize>);

fn cpus(text: &str) -> Result<Cpus, String> {
    // The number of bits of cpu_set_t.
    const MOST: usize = 1024;
    let wrong = || format!("'{text}' is not a list of CPUs below {MOST}, as in 0,2-3");
    let mut all = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&n| n < MOST);
        let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(wrong()) };
        if first > last {
            return Err(wrong());
        }
        all.extend(first..=last);
    }
    Ok(Cpus(all))
}

/// Parses `--output`.
pub fn output(text: &str) -> Output {
    match text {
        "null" => Output::Discard,
        "inherit" => Output::Inherit,
        path => Output::File(path.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants() {
        let v = variant("two words='--backing thp' --parts 'text,rodata'").unwrap();
        assert_eq!((v.name.as_str(), v.options.len()), ("two words", 3));
        assert_eq!(variant("thp").unwrap().options, ["--backing", "thp"]);
        assert_eq!(variant("plain=").unwrap().options, Vec::<String>::new());
        for bad in ["=--backing thp", "bare=", "x='"] {
            assert!(variant(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0,2-4"), Ok(Cpus(vec![0, 2, 3, 4])));
        for bad in ["", "3-1", "x", "0,,1", "1024", "0-99999999999999999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
