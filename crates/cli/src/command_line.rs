// SPDX-License-Identifier: Apache-2.0
//! The command line: its definition, and what is done with it.

use crate::colour::{ColourArgs, When};
use crate::failure::{Exit, Failure};
use crate::run::RunArgs;
use crate::starter::{Start, Starter};
use crate::{
    advise, align, attach, compare, doctor, inspect, lab, ministat, pool, prime, run, service, stat, store,
    top, wrap,
};
use crate::{ending, log, usage};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use hugelift_lift::start::EarlyStatus;
use hugelift_linux::inherited_signals;
use hugelift_linux::io::console::{guard_standard_files, say};
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What `hugelift --version` prints: the version, the commit of a release build, and the target.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("HUGELIFT_BUILD_COMMIT"),
    ", ",
    env!("HUGELIFT_BUILD_TARGET"),
    ")"
);

/// Puts the code and data of any Linux program on huge pages
#[derive(Parser)]
#[command(name = "hugelift", version, long_version = VERSION, about, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    colour: ColourArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(RunArgs),
    Attach(attach::AttachArgs),
    Restore(attach::RestoreArgs),
    Compare(Box<compare::CompareArgs>),
    Stat(stat::StatArgs),
    Inspect(inspect::InspectArgs),
    Advise(advise::AdviseArgs),
    Top(top::TopArgs),
    Doctor(doctor::DoctorArgs),
    Pool(pool::PoolArgs),
    Prime(prime::PrimeArgs),
    Align(align::AlignArgs),
    Service(service::ServiceArgs),
    Wrap(wrap::WrapArgs),
    Unwrap(wrap::UnwrapArgs),
    Store(store::StoreArgs),
    Ministat(ministat::MinistatArgs),
    Lab(lab::LabArgs),
}

/// Returns the definition of all commands and their options, with the ends of their help texts.
pub fn definition() -> clap::Command {
    ending::added_to(Cli::command())
}

/// Parses the command line. What [`Starter`] rejects is parsed again by the whole definition, whose error
/// messages know all subcommands.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    if let Some(command) = plain_program(args) {
        let colour = ColourArgs { when: When::Auto };
        return Ok(Cli { colour, command: Command::Run(RunArgs::plain(command.to_vec())) });
    }
    if starts_a_program(args.iter().map(OsString::as_os_str))
        && let Ok(Starter { colour, command: Start::Run(run) }) = Starter::try_parse_from(args)
    {
        return Ok(Cli { colour, command: Command::Run(run) });
    }
    let matches = definition().try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut definition()))
}

/// Returns the program and its arguments in `hugelift run [--] PROG ARGS`; `None` if there is an option, or could be
/// one.
fn plain_program(args: &[OsString]) -> Option<&[OsString]> {
    let (command, words) = args.get(1..)?.split_first()?;
    let command = match words.split_first() {
        _ if command != "run" => return None,
        Some((word, words)) if word == "--" => words,
        _ if words.iter().any(|word| word == "--") => return None,
        _ => words,
    };
    let is_name = |word: &OsString| !word.is_empty() && !word.as_bytes().starts_with(b"-");
    command.first().is_some_and(is_name).then_some(command)
}

/// Returns whether the words of a command line are those of `hugelift run`. `--color` may stand before `run`.
fn starts_a_program<'a>(words: impl Iterator<Item = &'a OsStr>) -> bool {
    let mut words = words.skip(1);
    loop {
        match words.next() {
            Some(word) if word == "--color" => _ = words.next(),
            Some(word) if word.as_bytes().starts_with(b"--color=") => {}
            word => return word.is_some_and(|word| word == "run"),
        }
    }
}

/// Returns the subcommand in `args` with its inner subcommand: `store drop`.
pub fn subcommands(args: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut path = Vec::new();
    // An option with a value in front of the inner subcommand ends the search. The help of the outer
    // one then serves: it lists the inner one.
    let mut words = args.iter().skip(1).map_while(|arg| arg.to_str());
    while let Some(name) = words.next() {
        if name == "--color" {
            words.next();
            continue;
        }
        if name.starts_with("--color=") {
            continue;
        }
        let Some(inner) = command.find_subcommand(name) else { break };
        path.push(name);
        command = inner.clone();
    }
    path.join(" ")
}

/// Runs the command line that the C runtime has passed to `main`, and returns the exit status.
///
/// # Safety
/// `argv` holds `argc` strings that end in NUL and live as long as the process.
pub unsafe fn enter(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    let word = |i| {
        // SAFETY: the caller passes `count` strings that end in NUL and live as long as the process.
        OsStr::from_bytes(unsafe { CStr::from_ptr(*argv.add(i)) }.to_bytes())
    };
    let args = || (0..count).map(|i| word(i).to_os_string()).collect();
    // The caller may have limited the stack to less than hugelift needs.
    if starts_a_program((0..count).map(word)) {
        return hugelift_lift::launch::stack::on_new_stack(|| {
            let status = EarlyStatus::read();
            if !status.is_filtered() {
                guard_standard_files();
            }
            let args: Vec<OsString> = args();
            command(&args, Some(status))
        });
    }
    guard_standard_files();
    inherited_signals::record();
    let args: Vec<OsString> = args();
    command(&args, None)
}

fn command(args: &[OsString], status: Option<EarlyStatus>) -> i32 {
    match parse(args) {
        Ok(Cli { colour, command }) => {
            status_of(log::start().and_then(|()| run(command, colour.when, status)))
        }
        Err(error) => {
            match usage::complaint(&error, &subcommands(args)) {
                Some(line) => say(&line),
                None => usage::show(&error, When::in_words(args)),
            }
            usage::status(&error)
        }
    }
}

/// Returns the exit status. Says why hugelift has failed, if it has.
fn status_of(ended: Result<Exit, Failure>) -> i32 {
    match ended {
        Ok(Exit(status)) => status,
        Err(failure) => {
            say(&failure.message);
            failure.status
        }
    }
}

fn run(command: Command, colour: When, status: Option<EarlyStatus>) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::run(args, status.unwrap_or_else(EarlyStatus::read)),
        Command::Attach(args) => attach::run_attach(&args),
        Command::Restore(args) => attach::run_restore(&args),
        Command::Compare(args) => compare::run(&args, colour),
        Command::Stat(args) => stat::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Top(args) => top::run(&args, colour),
        Command::Doctor(args) => doctor::run(&args, colour),
        Command::Pool(args) => pool::run(&args),
        Command::Prime(args) => prime::run(&args),
        Command::Align(args) => align::run(&args),
        Command::Service(args) => service::run(&args),
        Command::Wrap(args) => wrap::run_wrap(&args),
        Command::Unwrap(args) => wrap::run_unwrap(&args),
        Command::Store(args) => store::run(&args),
        Command::Ministat(args) => ministat::run(&args),
        Command::Lab(args) => lab::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::starter::run_options;
    use hugelift_lift::options::StartOptions;

    /// What is parsed without clap means what clap says. All command lines of up to four words are tried.
    #[test]
    fn plain_starts_mean_what_clap_says() {
        let words = ["a", "-v", "--", "", "--color", "-", "--strict", "run"];
        let mut lines: Vec<Vec<OsString>> = vec![["hugelift", "run"].map(OsString::from).to_vec()];
        let (mut plain, mut from) = (0, 0);
        for _ in 0..4 {
            let longer = lines[from..].iter().flat_map(|line| {
                words.iter().map(|word| line.iter().cloned().chain([OsString::from(word)]).collect())
            });
            let longer: Vec<Vec<OsString>> = longer.collect();
            from = lines.len();
            lines.extend(longer);
        }
        for line in &lines {
            let Some(command) = plain_program(line) else { continue };
            let ours = StartOptions::from(RunArgs::plain(command.to_vec()));
            let theirs = run_options(line[2..].iter().cloned()).map(StartOptions::from);
            assert_eq!(Some(ours), theirs.ok(), "{line:?}");
            plain += 1;
        }
        assert!(plain > 500, "{plain}");
    }

    #[test]
    fn color_may_stand_before_run() {
        let is = |line: &str| starts_a_program(line.split(' ').map(OsStr::new));
        for line in ["hugelift run", "hugelift --color=never run x", "hugelift --color never run x"] {
            assert!(is(line), "{line}");
        }
        for line in [
            "hugelift",
            "hugelift --color run",
            "hugelift inspect run",
            "hugelift --color=always",
            "x -- run",
        ] {
            assert!(!is(line), "{line}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }
}
