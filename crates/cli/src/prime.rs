// SPDX-License-Identifier: Apache-2.0
//! `hugelift prime`: puts the page cache of programs, their shared objects and data files on huge pages, for
//! every process of the machine.

mod files;
mod planned;
mod wanted;

pub(crate) use files::{OfProcess, of_process};

use crate::FAILED;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::process_id;
use clap::Args;
use files::FilePrimer;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::prime::{FileReport, PrimeReport, Replaced, text};
use hugelift_core::printable::Escape;
use hugelift_core::quantity;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::machine::memory_left_here;
use hugelift_pages::pagecache::prime::{CacheFile, Pace, huge_page};
use hugelift_relink::replace::{Left, ReplaceError, Replaced as Copied, clean, replace, restore};
use hugelift_relink::separate::Options;
use std::ffi::{OsStr, OsString};
use std::path::Path;
pub(crate) use wanted::find;
use wanted::{Item, Wanted, data_file};

/// The least rate, in bytes a second.
const SLOWEST: u64 = 64 << 10;
/// Exit status where some of the files are not all huge.
const NOT_ALL: i32 = 1;

/// Put the page cache of programs, shared objects and data files on huge pages
///
/// The kernel then maps them huge in every process, without a copy and without hugelift, until the
/// pages are evicted or the file is replaced. Exit status: 0 if everything that can be huge is
/// huge, 1 if not, 125 if a file or process cannot be read.
#[derive(Args, Debug)]
pub struct PrimeArgs {
    /// Also the shared objects that each program needs, as its loader finds them, and large ones
    /// that it is known to open after its start (libjvm.so, modules of python, php, node and
    /// PostgreSQL)
    #[arg(long)]
    with_libs: bool,

    /// Also all files that this process has mapped (repeatable)
    #[arg(long, value_name = "PID", value_parser = process_id::parse)]
    pid: Vec<u32>,

    /// Also the files in folders and below them, of at least one huge page
    ///
    /// Symbolic links are not followed, and other file systems are not entered.
    #[arg(short, long, conflicts_with_all = ["replace", "restore", "clean"])]
    recursive: bool,

    /// Read at most so much of all data files into memory [default: half of what is left]
    ///
    /// Code is read as far as memory is left for it.
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, conflicts_with_all = ["restore", "clean"])]
    budget: Option<u64>,

    /// Read at most so much a second, as in 50M [default: as fast as the disk gives it]
    ///
    /// While memory is short (10 % of the time some task waits for it, /proc/pressure/memory), nothing is read. After half a
    /// minute of that the rest is left.
    #[arg(long, value_name = "SIZE", value_parser = rate, conflicts_with_all = ["check", "restore", "clean"])]
    rate: Option<u64>,

    /// Change nothing; show what is huge and what is not
    #[arg(long)]
    check: bool,

    /// Replace a file that is in use, or laid out so that nothing of it can be huge, by a copy with
    /// the same bytes, owner, mode, attributes and times
    ///
    /// Running processes keep the old file, which also stays beside the new one. Files that are huge
    /// without a copy are not replaced, nor are set-uid programs and those with file capabilities. The
    /// loader that FILE names checks the copy (ld.so --verify) with the rights of FILE's owner, and
    /// only if nobody but root and you can change that loader; otherwise FILE is not replaced.
    /// Symbolic links of other users are not followed.
    #[arg(long, conflicts_with = "check")]
    replace: bool,

    /// With --replace: give the code of each file huge pages of its own, as align --separate does
    ///
    /// Files that are huge without a copy are replaced too, if their code gains by it. A file that cannot be
    /// separated is replaced as without this option.
    #[arg(long, requires = "replace")]
    separate: bool,

    /// With --replace --separate: change nothing; print what each file and all together would gain and take
    ///
    /// Each file is separated and proven, which takes seconds for large ones.
    #[arg(long, requires = "separate")]
    dry_run: bool,

    /// With --replace: a shell command that must have the same result with the copy as with the
    /// file; {} in it stands for the file's name
    ///
    /// /bin/sh runs it twice with your rights. If it executes {}, FILE runs with your rights, and with
    /// root's if you are root. Use it on files whose owner you trust.
    #[arg(long = "try", value_name = "COMMAND", requires = "replace")]
    attempt: Option<String>,

    /// Put back the originals of replaced files, and do nothing else
    #[arg(long, conflicts_with_all = ["check", "replace", "pid", "with_libs", "json"])]
    restore: bool,

    /// Remove originals that are of no use any more, in folders or of files, and do nothing else
    ///
    /// Package managers do not know of the originals that --replace keeps. An original is of no use if its file is gone,
    /// as after the removal of its package, or has another build-id, as after an upgrade.
    #[arg(long, conflicts_with_all = ["check", "replace", "restore", "pid", "with_libs", "json"])]
    clean: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,

    /// Also show files without a whole huge page
    #[arg(short, long)]
    verbose: bool,

    /// Files by their path, programs by a name on PATH
    #[arg(value_name = "FILE|PROG", required_unless_present = "pid")]
    targets: Vec<OsString>,
}

/// Primes, checks or restores, and prints the report.
///
/// # Errors
/// The report cannot be printed. A file that cannot be read is in the report.
pub fn run(args: &PrimeArgs) -> Result<Exit, Failure> {
    if args.restore {
        return Ok(restore_all(&args.targets));
    }
    if args.clean {
        return Ok(clean_all(&args.targets));
    }
    let page = huge_page();
    let bytes = page.as_ref().unwrap_or(&PageSize::MB2).bytes();
    let mut wanted = Wanted::new(args.replace);
    for target in &args.targets {
        match Path::new(target) {
            folder if args.recursive && folder.is_dir() => wanted.add_folder(folder, bytes),
            _ => wanted.add_target(target, args.with_libs),
        }
    }
    for pid in &args.pid {
        if let Err(error) = wanted.add_process(*pid) {
            wanted.fail(Path::new(&format!("process {pid}")), error.to_string());
        }
    }
    if args.dry_run {
        return plan(wanted, page.map_err(|obstacle| obstacle.to_string())?, args.json);
    }
    let budget = args.budget.unwrap_or_else(|| memory_left_here() / 2);
    let mut primer = FilePrimer::new(page.clone(), args.check, Pace::new(budget, args.rate));
    let mut treat = |item: Item| {
        let report = primer.treat(&item);
        match (item, &page) {
            (Item::File { file: CacheFile::Code(file), foreign, .. }, Ok(page))
                if args.replace && (args.separate || report.gains_by_copy()) =>
            {
                match foreign {
                    Some(why) => report.not_replaced(why),
                    None => replaced(&file, report, *page, args, &mut primer),
                }
            }
            _ => report,
        }
    };
    let failed = wanted.failed;
    let files: Vec<FileReport> = wanted.items.into_iter().map(&mut treat).collect();
    let report = PrimeReport::new(page.ok(), files);
    if report.files.iter().any(|f| f.replaced.is_some()) {
        say("a package manager that checks its files (debsums, rpm -V) will report the replaced ones, and \
             an upgrade overwrites them; if perf still has symbols of the old file: perf buildid-cache \
             --purge FILE");
    }
    console::print(&if args.json { output::json(&report)? } else { text(&report, args.verbose) })?;
    Ok(match (failed, report.is_huge()) {
        (true, _) => Exit(FAILED),
        (false, true) => Exit::SUCCESS,
        (false, false) => Exit(NOT_ALL),
    })
}

/// Reports on the data file that `target` names, as `--check` does; `None` if it names a program, or nothing that can be read.
pub(crate) fn checked_data(target: &OsStr) -> Option<PrimeReport> {
    let file = data_file(target)?;
    let page = huge_page();
    let report = FilePrimer::new(page.clone(), true, Pace::new(0, None)).treat(&Item::of(file));
    Some(PrimeReport::new(page.ok(), vec![report]))
}

/// Parses `--rate`.
fn rate(text: &str) -> Result<u64, String> {
    match quantity::bytes(text)? {
        rate if rate < SLOWEST => Err(format!(
            "at {} a second a huge page would take more than half a minute; {} is the least",
            human_bytes(rate),
            human_bytes(SLOWEST)
        )),
        rate => Ok(rate),
    }
}

/// Prints what would become of the files.
fn plan(wanted: Wanted, page: PageSize, json: bool) -> Result<Exit, Failure> {
    let failed = wanted.failed;
    let planned = planned::Planned::new(wanted.items, page);
    console::print(&if json { output::json(&planned)? } else { planned.text() })?;
    Ok(if failed { Exit(FAILED) } else { Exit::SUCCESS })
}

/// Replaces the file by a copy, and returns the report on the copy; if that fails, `report` with the
/// reason.
fn replaced(
    file: &ElfFile,
    report: FileReport,
    page: PageSize,
    args: &PrimeArgs,
    primer: &mut FilePrimer,
) -> FileReport {
    let attempt = args.attempt.as_deref();
    let done = replace(file, page, args.separate.then(|| Options::usual(page)), attempt);
    let inseparable = match &done {
        Err(ReplaceError::Relay(error)) => error.not_separated(),
        _ => None,
    };
    match inseparable {
        None => replacement(file, report, page, done, primer),
        Some((why, gains_nothing)) if report.gains_by_copy() => {
            let done = replace(file, page, None, attempt);
            replacement(file, report, page, done, primer).not_separated(why, gains_nothing)
        }
        // It is huge as far as it can be.
        Some((why, gains_nothing)) => report.not_separated(why, gains_nothing),
    }
}

/// Returns the report on the copy that was `done`; if there is none, `report` with the reason.
fn replacement(
    file: &ElfFile,
    report: FileReport,
    page: PageSize,
    done: Result<Copied, ReplaceError>,
    primer: &mut FilePrimer,
) -> FileReport {
    let done = match done {
        Ok(done) => done,
        Err(error) => return report.not_replaced(error.to_string()),
    };
    if let Some(why) = &done.not_compared {
        say(&format!("{}: the loaded copy was not compared: {why}", done.path.escaped()));
    }
    let replaced = Replaced { original: done.original.into(), aslr_bits_lost: done.aslr_bits_lost };
    let report = match ElfFile::open(&done.path) {
        Ok(copy) => primer.prime(&CacheFile::Code(copy), page, &[]),
        Err(error) => FileReport::failed((&file.path).into(), error.to_string()),
    };
    FileReport { replaced: Some(replaced), ..report }
}

/// Puts back the originals of all targets, also after one that fails.
fn restore_all(targets: &[OsString]) -> Exit {
    let mut exit = Exit::SUCCESS;
    for target in targets {
        let done = find(target).map_err(|e| e.to_string());
        let done = done.and_then(|path| restore(&path).map_err(|e| e.to_string()));
        match done {
            Ok(path) => say(&format!("{}: the original is back", path.escaped())),
            Err(error) => {
                say(&error);
                exit = Exit(FAILED);
            }
        }
    }
    exit
}

/// Removes the originals of no use, also after a target that fails.
fn clean_all(targets: &[OsString]) -> Exit {
    let mut exit = Exit::SUCCESS;
    for target in targets {
        match clean(Path::new(target)) {
            Ok(all) => all.iter().for_each(|(original, left)| {
                let original = original.escaped();
                say(&match left {
                    Left::Gone => format!("{original}: removed, as its file is gone"),
                    Left::Upgraded => format!("{original}: removed, as its file has another build-id"),
                    Left::Kept => format!("{original}: kept, as its file is here"),
                });
            }),
            Err(error) => {
                say(&error.to_string());
                exit = Exit(FAILED);
            }
        }
    }
    exit
}
