// SPDX-License-Identifier: Apache-2.0
//! `hugelift run`: starts a program on huge pages. [`hugelift_lift::start`] does it.

use crate::failure::{Exit, Failure};
use crate::options::{AFTER_FORK, CHILDREN, CopyArgs, MALLOC, NAMES, PolicyArgs, SECCOMP, heading, one_of};
use clap::{Args, ValueHint};
use hugelift_core::demangle::Names;
use hugelift_lift::options::{AfterFork, Children, LiftOptions, Malloc, Seccomp, StartOptions, Verbosity};
use hugelift_lift::start::{EarlyStatus, start};
use std::ffi::OsString;
use std::path::PathBuf;

/// Start a program with its code and read-only data on huge pages
///
/// The program runs as if started without hugelift: same process, same exit status. What
/// cannot be lifted runs as it is, and one line on stderr says why.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Run the program as this user, by name or number (root only)
    #[arg(long, value_name = "USER[:GROUP]", value_hint = ValueHint::Username, help_heading = heading::PROGRAM)]
    user: Option<String>,

    /// Have the program's allocator put the heap on huge pages, by its variable of the environment
    #[arg(long, value_parser = one_of(MALLOC), default_value = "auto", help_heading = heading::PROGRAM)]
    malloc: Malloc,

    /// Copy all of text and rodata at the start. Without it, --backing auto copies while the program runs, once it
    /// has used 50 times the CPU time that the copy takes
    #[arg(long, conflicts_with = "budget", help_heading = heading::PROGRAM)]
    eager: bool,

    #[command(flatten)]
    copies: CopyArgs,

    /// What becomes of the programs that the program starts
    #[arg(long, value_parser = one_of(CHILDREN), default_value = "plain", help_heading = heading::PROGRAM)]
    children: Children,

    /// What becomes of huge pages that writes after a fork have split
    #[arg(long, value_parser = one_of(AFTER_FORK), default_value = "auto", help_heading = heading::PROGRAM)]
    after_fork: AfterFork,

    /// Pages of the pool that are kept for what a forked child writes (--data-backing hugetlb)
    #[arg(long, value_name = "PAGES", default_value_t = 0, help_heading = heading::PROGRAM)]
    fork_reserve: u64,

    /// What is done under a seccomp filter, which may kill a process for the calls of a lift
    #[arg(long, value_parser = one_of(SECCOMP), default_value = "auto", help_heading = heading::PROGRAM)]
    seccomp: Seccomp,

    /// Print what would be done, and start nothing
    #[arg(long, help_heading = heading::OUTPUT)]
    dry_run: bool,

    /// Do not start the program (exit 125) unless all that was planned is lifted
    #[arg(long, conflicts_with = "budget", help_heading = heading::OUTPUT)]
    strict: bool,

    /// Write what smaps shows after the lift to FILE, as JSON
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    report: Option<PathBuf>,

    /// Name copied code for perf(1): write /tmp/perf-PID.map, and remove it at the program's end;
    /// with the names of the source, or (=mangled) of the symbol table
    #[arg(
        long,
        value_parser = one_of(NAMES),
        value_name = "NAMES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "demangled",
        conflicts_with = "budget",
        help_heading = heading::OUTPUT
    )]
    perf_map: Option<Names>,

    /// Say what was lifted (-vv: and every skip)
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = heading::OUTPUT)]
    verbose: u8,

    /// Say nothing
    #[arg(short, long, conflicts_with = "verbose", help_heading = heading::OUTPUT)]
    quiet: bool,

    /// The program, looked up on PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments,
          value_names = ["PROG", "ARGS"])]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the options of a command line that has none: `hugelift run PROG ARGS`. clap takes 0.2 ms for it, which
    /// would be a tenth of what hugelift adds to a start.
    pub fn plain(command: Vec<OsString>) -> RunArgs {
        RunArgs {
            policy: PolicyArgs::default(),
            user: None,
            malloc: Malloc::Auto,
            eager: false,
            copies: CopyArgs::default(),
            children: Children::Plain,
            after_fork: AfterFork::Auto,
            fork_reserve: 0,
            seccomp: Seccomp::Auto,
            dry_run: false,
            strict: false,
            report: None,
            perf_map: None,
            verbose: 0,
            quiet: false,
            command,
        }
    }
}

impl From<RunArgs> for StartOptions {
    fn from(args: RunArgs) -> StartOptions {
        let RunArgs {
            policy,
            user,
            malloc,
            eager,
            copies,
            children,
            after_fork,
            fork_reserve,
            seccomp,
            dry_run,
            strict,
            report,
            perf_map,
            verbose,
            quiet,
            command,
        } = args;
        let verbosity = match verbose {
            _ if quiet => Verbosity::Quiet,
            0 => Verbosity::Problems,
            1 => Verbosity::Summary,
            _ => Verbosity::Everything,
        };
        let lift = LiftOptions {
            policy: policy.into(),
            eager,
            hot: copies.limits(),
            after_fork,
            perf_map,
            strict,
            verbosity,
        };
        StartOptions { lift, command, user, malloc, children, fork_reserve, seccomp, report, dry_run }
    }
}

/// Becomes the program; returns only where nothing is started.
///
/// # Errors
/// The program cannot be started.
pub fn run(args: RunArgs, status: EarlyStatus) -> Result<Exit, Failure> {
    args.policy.no_files()?;
    Ok(Exit(start(&args.into(), &status)?))
}

#[cfg(test)]
mod tests {
    use crate::starter::run_options;
    use hugelift_core::heat::follow::Limits;
    use hugelift_core::policy::{Backing, PageChoice, SpanChoice};
    use hugelift_core::snapshot::Part;
    use hugelift_lift::options::{
        AfterFork, Children, DataBacking, Malloc, Numa, Seccomp, StartOptions, Verbosity,
    };
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn options(words: &str) -> StartOptions {
        let words = words.split_whitespace().map(OsString::from);
        run_options(words.chain([OsString::from_vec(b"/x\xff".to_vec())])).expect("options of run").into()
    }

    #[test]
    fn without_options() {
        let StartOptions { lift, command, user, malloc, children, fork_reserve, seccomp, report, dry_run } =
            options("");
        assert_eq!(command, [OsString::from_vec(b"/x\xff".to_vec())]);
        assert_eq!((user, report, dry_run, fork_reserve), (None, None, false, 0));
        assert_eq!((malloc, children, seccomp), (Malloc::Auto, Children::Plain, Seccomp::Auto));
        assert_eq!((lift.eager, lift.after_fork, lift.perf_map), (false, AfterFork::Auto, None));
        assert_eq!(lift.hot, Some(Limits::NONE));
        assert!(!lift.copies_at_start() && lift.copies_hot().is_some());
        assert_eq!((lift.strict, lift.verbosity), (false, Verbosity::Problems));
        let policy = lift.policy;
        assert_eq!((policy.backing, policy.data_backing), (None, DataBacking::Thp));
        assert_eq!((policy.page, policy.span, policy.numa), (PageChoice::Usual, SpanChoice::Inner, None));
        assert_eq!((policy.parts.as_slice(), policy.spare), (&[Part::Text, Part::Rodata][..], 0));
        assert!(policy.objects.is_empty() && policy.excluded.is_empty());
    }

    #[test]
    fn each_option_arrives() {
        let all = options(
            "--backing shared --page-size auto --parts data --data-backing hugetlb --numa local --spare 64M \
             --span auto --object a --exclude b --user u --malloc thp --eager --children lift \
             --after-fork join --fork-reserve 3 --seccomp try --dry-run --strict --report r --perf-map -vv",
        );
        let policy = &all.lift.policy;
        assert_eq!((policy.backing, policy.page), (Some(Backing::Shared), PageChoice::Mixed));
        assert_eq!((policy.data_backing, policy.numa), (DataBacking::Hugetlb, Some(Numa::Local)));
        assert_eq!((policy.spare, policy.span), (64 << 20, SpanChoice::Auto));
        assert_eq!(policy.parts, [Part::Relro, Part::Data]);
        assert_eq!(
            (policy.objects.as_slice(), policy.excluded.as_slice()),
            (&["a".into()][..], &["b".into()][..])
        );
        let lift = &all.lift;
        assert_eq!((lift.eager, lift.after_fork), (true, AfterFork::Join));
        assert!(lift.strict && lift.perf_map.is_some() && lift.verbosity == Verbosity::Everything);
        assert_eq!((all.malloc, all.children, all.seccomp), (Malloc::Thp, Children::Lift, Seccomp::Try));
        assert!(all.dry_run && all.fork_reserve == 3 && all.user.is_some() && all.report.is_some());
        assert!(lift.copies_at_start() && lift.copies_hot().is_none());
        let hot = |words| options(words).lift.copies_hot().map(|limits| limits.budget);
        assert_eq!((hot("--whole"), hot("--backing thp"), hot("--strict")), (None, None, None));
        assert_eq!((hot(""), hot("--budget 6M")), (Some(u64::MAX), Some(6 << 20)));
        // A budget chooses what is copied, which only the program's run can show.
        assert_eq!(hot("--backing thp --budget 6M"), Some(6 << 20));
        assert_eq!(options("-v").lift.verbosity, Verbosity::Summary);
        assert_eq!(options("-q").lift.verbosity, Verbosity::Quiet);
    }

    #[test]
    fn the_words_of_the_preload_mean_the_same() {
        for words in [
            "",
            "--parts text",
            "--parts text,rodata,data --backing thp",
            "--parts all --backing=hugetlb --page-size 2M",
            "--backing pagecache --object a* --object=b* --exclude c",
            "--backing shared --spare 64M --page-size auto --span inner --eager",
            "--parts bss,heap,stack,anon",
            "--backing auto -v",
        ] {
            let (preloaded, _) = hugelift::words::parse(words).expect(words);
            let (here, there) = (options(words).lift.policy.policy(), preloaded.policy());
            assert_eq!(format!("{:?}", here.expect(words)), format!("{:?}", there.expect(words)), "{words}");
        }
    }
}
