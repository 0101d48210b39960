// SPDX-License-Identifier: Apache-2.0
//! `hugelift prime`: puts the page cache of programs and their shared objects on huge pages, for
//! every process of the machine.

mod planned;

use crate::FAILED;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::program::say_missing;
use clap::Args;
use hugelift_core::addr::PageSize;
use hugelift_core::elf::ElfError;
use hugelift_core::maps::{FileId, Mapping};
use hugelift_core::prime::{FileReport, PrimeReport, Replaced, text};
use hugelift_core::printable::Escape;
use hugelift_core::separate::Options;
use hugelift_os::elf::elf_file::{ElfFile, FileError};
use hugelift_os::elf::file_snapshot::executable;
use hugelift_os::elf::needed::needed;
use hugelift_os::elf::opened::opened_later;
use hugelift_os::io::console::{self, say};
use hugelift_os::io::entry::is_trusted;
use hugelift_os::launch::lookup::resolve;
use hugelift_os::launch::program::ExecError;
use hugelift_os::pagecache::prime::{blocked, check, huge_page, prime as prime_file};
use hugelift_os::pagecache::relay::RelayError;
use hugelift_os::pagecache::replace::{ReplaceError, replace, restore};
use hugelift_os::proc::mapped::MappedFiles;
use hugelift_os::proc::procfs::{ProcError, Process};
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Exit status where some of the files are not all huge.
const NOT_ALL: i32 = 1;

/// Put the page cache of programs and shared objects on huge pages
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

    /// Also all objects that this process has mapped (repeatable)
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,

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
    let mut wanted = Wanted::default();
    for target in &args.targets {
        wanted.add_target(target, args.with_libs);
    }
    for pid in &args.pid {
        if let Err(error) = wanted.add_process(*pid) {
            wanted.fail(Path::new(&format!("process {pid}")), error.to_string());
        }
    }
    let page = huge_page();
    if args.dry_run {
        return plan(wanted, page.map_err(|obstacle| obstacle.to_string())?, args.json);
    }
    let treat = |item: Item| match (item, &page) {
        (Item::Unreadable(report), _) => report,
        (Item::Object(file, _), Err(obstacle)) => blocked(&file, obstacle),
        (Item::Object(file, _), Ok(page)) if args.check => check(&file, *page),
        (Item::Object(file, foreign), Ok(page)) => {
            let report = prime_file(&file, *page);
            match foreign {
                _ if !(args.replace && (args.separate || report.gains_by_copy())) => report,
                Some(why) => FileReport { not_replaced: Some(why), ..report },
                None => replaced(&file, report, *page, args),
            }
        }
    };
    let failed = wanted.failed;
    let files: Vec<FileReport> = wanted.items.into_iter().map(treat).collect();
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

/// Prints what would become of the files.
fn plan(wanted: Wanted, page: PageSize, json: bool) -> Result<Exit, Failure> {
    let failed = wanted.failed;
    let planned = planned::Planned::new(wanted.items, page);
    console::print(&if json { output::json(&planned)? } else { planned.text() })?;
    Ok(if failed { Exit(FAILED) } else { Exit::SUCCESS })
}

/// Replaces the file by a copy, and returns the report on the copy; if that fails, `report` with the
/// reason.
fn replaced(file: &ElfFile, report: FileReport, page: PageSize, args: &PrimeArgs) -> FileReport {
    let attempt = args.attempt.as_deref();
    let mut done = replace(file, page, args.separate.then(|| Options::usual(page)), attempt);
    if let Err(ReplaceError::Relay(RelayError::Inseparable { source, .. })) = &done {
        if report.gains_by_copy() {
            tracing::debug!(path = ?file.path, why = %source, "not separated");
            done = replace(file, page, None, attempt);
        } else {
            // It is huge as far as it can be.
            if !source.gains_nothing() {
                say(&format!("{}: not separated: {source}", file.path.escaped()));
            }
            return report;
        }
    }
    let done = match done {
        Ok(done) => done,
        Err(error) => return FileReport { not_replaced: Some(error.to_string()), ..report },
    };
    if let Some(why) = &done.not_compared {
        say(&format!("{}: the loaded copy was not compared: {why}", done.path.escaped()));
    }
    let replaced = Replaced { original: done.original.into(), aslr_bits_lost: done.aslr_bits_lost };
    let report = match ElfFile::open(&done.path) {
        Ok(copy) => prime_file(&copy, page),
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

/// A file to prime.
enum Item {
    /// The file, and the reason if it must not be replaced.
    Object(ElfFile, Option<String>),
    Unreadable(FileReport),
}

/// All files to prime, each once.
#[derive(Default)]
struct Wanted {
    items: Vec<Item>,
    known: HashSet<FileId>,
    /// A file or process that the user named cannot be read.
    failed: bool,
}

impl Wanted {
    /// Adds a file that the user has named.
    fn add(&mut self, file: ElfFile) {
        if self.known.insert(file.id) {
            self.items.push(Item::Object(file, None));
        }
    }

    /// Adds a file that a program or process of user `namer` loads.
    fn add_named_by(&mut self, file: ElfFile, namer: Option<u32>) {
        if self.known.insert(file.id) {
            let why = foreign_owner(&file, namer);
            self.items.push(Item::Object(file, why));
        }
    }

    fn unreadable(&mut self, path: &Path, error: String) {
        self.items.push(Item::Unreadable(FileReport::failed(path.into(), error)));
    }

    /// Adds a file or process that the user named and that cannot be read.
    fn fail(&mut self, path: &Path, error: String) {
        self.failed = true;
        self.unreadable(path, error);
    }

    fn add_target(&mut self, target: &OsStr, with_libs: bool) {
        let opened = find(target).map_err(|e| e.to_string()).and_then(|path| {
            executable(&path).and_then(|path| ElfFile::open(&path)).map_err(|e| e.to_string())
        });
        match opened {
            Err(error) => self.fail(Path::new(target), error),
            Ok(file) if with_libs => {
                let (path, owner) = (file.path.clone(), owner(&file));
                let mut files = needed(file);
                let missing = std::mem::take(&mut files.missing);
                let mut files = files.files.into_iter();
                files.by_ref().take(1).for_each(|program| self.add(program));
                files.for_each(|file| self.add_named_by(file, owner));
                for later in opened_later(&path) {
                    say(&format!(
                        "{}: also {}, which it opens later",
                        path.escaped(),
                        later.file.path.escaped()
                    ));
                    needed(later.file).files.into_iter().for_each(|file| self.add_named_by(file, owner));
                }
                say_missing(&path, &missing);
            }
            Ok(file) => self.add(file),
        }
    }

    fn add_process(&mut self, pid: u32) -> Result<(), ProcError> {
        let process = Process::new(pid);
        let user = process.status()?.uid;
        let mapped = MappedFiles::of(process);
        // Each file once: its first mapping, whether any of it is executable.
        let mut files: BTreeMap<FileId, (Mapping, bool)> = BTreeMap::new();
        for mapping in process.maps()?.into_iter().filter(|m| m.is_file() && m.path.has_root()) {
            let code = mapping.prot.exec;
            files.entry(mapping.file).or_insert((mapping, false)).1 |= code;
        }
        for (mapping, code) in files.into_values() {
            let path = mapping.path.clone();
            if mapping.deleted {
                // Only code matters: programs delete data files that they still use.
                if code {
                    let error = format!("deleted or replaced since process {pid} has mapped it: restart it");
                    self.unreadable(&path, error);
                }
                continue;
            }
            match open_in(&mapped, &mapping) {
                Ok(file) => self.add_named_by(file, user),
                // A mapped file need not be an ELF object.
                Err(FileError::Elf { source: ElfError::NotElf(_), .. } | FileError::NotRegular { .. }) => {}
                Err(error) if code => self.unreadable(&path, error.to_string()),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

fn owner(file: &ElfFile) -> Option<u32> {
    file.file().metadata().ok().map(|meta| meta.uid())
}

/// Says why a file is not replaced: it belongs to one user, and another user decides that it is loaded.
fn foreign_owner(file: &ElfFile, namer: Option<u32>) -> Option<String> {
    let owner = owner(file);
    if [owner, namer].into_iter().any(|uid| uid.is_some_and(is_trusted)) || owner == namer {
        return None;
    }
    let shown = |uid: Option<u32>| uid.map_or("an unknown user".to_string(), |uid| format!("user {uid}"));
    Some(format!(
        "it belongs to {}, and {} has loaded it; to replace it, name it: hugelift prime --replace {}",
        shown(owner),
        shown(namer),
        file.path.escaped()
    ))
}

/// Opens a file that a process has mapped. It keeps the path that it has in the mount namespace of the process, which may
/// be in a container.
fn open_in(files: &MappedFiles, mapping: &Mapping) -> Result<ElfFile, FileError> {
    let failed = |source| FileError::Io { path: (&mapping.path).into(), source };
    let file = files.find(mapping).and_then(|found| found.open()).map_err(failed)?;
    let mut file = ElfFile::of_open(&file)?;
    file.path.clone_from(&mapping.path);
    Ok(file)
}

/// Returns the path of a target. A name without a slash is looked up on PATH, then in the current
/// folder.
fn find(target: &OsStr) -> Result<PathBuf, ExecError> {
    if target.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(target));
    }
    match resolve(target) {
        Ok(path) => Ok(path),
        Err(_) if Path::new(target).is_file() => Ok(PathBuf::from(target)),
        Err(error) => Err(error),
    }
}
