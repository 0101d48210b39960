// SPDX-License-Identifier: Apache-2.0
//! `hugelift wrap` and `hugelift unwrap`: a drop-in by which hugelift starts what a service of systemd starts.

mod own;
mod place;
mod systemd;

use crate::failure::{Exit, Failure};
use crate::starter::run_options;
use clap::Args;
use hugelift_core::printable::Escape;
use hugelift_core::units::{self, Unit};
use hugelift_lift::options::StartOptions;
use hugelift_linux::held_signals::HeldSignals;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::unit_files::{self, UnitFiles};
use own::Own;
use place::Place;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use systemd::Systemd;

/// Have a service of systemd started on huge pages, by a drop-in
///
/// The drop-in starts each program of ExecStart= by `hugelift run`. It is checked by systemd-analyze, and taken back if that
/// finds a fault. No service is restarted: the command for it is printed.
#[derive(Args, Debug)]
pub struct WrapArgs {
    /// Print the drop-in, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Change the units in this folder, which is the root of an image
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,

    /// The service, with or without .service
    unit: String,

    /// Options of `hugelift run`, as in: -- --backing thp
    #[arg(last = true, value_name = "OPTIONS OF RUN")]
    options: Vec<OsString>,
}

/// Remove the drop-in that `hugelift wrap` has written
///
/// No other file is removed. The service is not restarted: the command for it is printed.
#[derive(Args, Debug)]
pub struct UnwrapArgs {
    /// Change the units in this folder, which is the root of an image
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,

    /// The service, with or without .service
    unit: String,
}

/// Writes the drop-in of a service.
///
/// # Errors
/// The service is better left as it is, or the drop-in cannot be written.
pub fn run_wrap(args: &WrapArgs) -> Result<Exit, Failure> {
    let options = checked(&args.options)?;
    let tree = Tree::new(args.root.clone());
    let files = find(&tree, &args.unit)?;
    let own = Own::of(&tree, &files.name)?;
    let texts = Texts::read(&tree, &files, &own)?;
    let unit = texts.unit(None).map_err(|refusal| refused(&files, &refusal))?;
    let made = units::wrap(&files.name, &unit, &program(&tree)?, &options)
        .map_err(|refusal| refused(&files, &refusal))?;
    let place = Place::of(&files.name, &made.text, |file| texts.unit(Some((file, &made.text))))?;
    if args.dry_run {
        console::print(&made.text)?;
    } else {
        write(&tree, &files, &own, &place)?;
    }
    made.notes.iter().for_each(|note| say(&format!("{}: {note}", files.name)));
    if tree.is_live() && !args.dry_run {
        say(&format!("it is used from the next start: systemctl restart {}", files.name));
    }
    Ok(Exit::SUCCESS)
}

/// Removes the drop-in of a service.
///
/// # Errors
/// There is none, or it cannot be removed.
pub fn run_unwrap(args: &UnwrapArgs) -> Result<Exit, Failure> {
    let tree = Tree::new(args.root.clone());
    // A drop-in may be left of a unit that is gone.
    let name = match find(&tree, &args.unit) {
        Ok(files) => files.name,
        Err(_) => units::name::service(&args.unit)?,
    };
    let own = Own::of(&tree, &name)?;
    if own.is_empty() {
        return Err(Failure::new(format!("{name} has no drop-in of 'hugelift wrap'")));
    }
    whole(|_| {
        own.remove(&tree)?;
        for file in own.files() {
            console::print(&format!("removed {}\n", tree.path(file).escaped()))?;
        }
        Systemd::of(&tree).reload()
    })?;
    if tree.is_live() {
        say(&format!("it is started without hugelift from the next start: systemctl restart {name}"));
    }
    Ok(Exit::SUCCESS)
}

/// Finds the files of a unit; says so if the name is an alias.
fn find(tree: &Tree, name: &str) -> Result<UnitFiles, Failure> {
    let name = units::name::service(name)?;
    let files = unit_files::find(tree, &name)?;
    if files.name != name {
        say(&format!("{name} is another name of {}", files.name));
    }
    Ok(files)
}

fn refused(files: &UnitFiles, refusal: &units::Refusal) -> Failure {
    Failure::new(format!("{} stays as it is: {refusal}", files.name))
}

/// Returns the options, which `hugelift run` must take in front of a program.
fn checked(options: &[OsString]) -> Result<Vec<String>, Failure> {
    let words = options.iter().cloned().chain(["--", "program"].map(OsString::from));
    let run = run_options(words).map_err(|error| {
        let line = error.to_string();
        let line = line.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
        Failure::new(format!("options of 'hugelift run': {line}"))
    })?;
    let StartOptions { command, dry_run, .. } = run.into();
    if command != ["program"] {
        return Err(Failure::new(
            "after -- there may be only options of 'hugelift run': the unit names the program",
        ));
    }
    if dry_run {
        return Err(Failure::new("'hugelift run --dry-run' starts nothing: write --dry-run before --"));
    }
    let text = |word: &OsString| {
        word.to_str().map(String::from).ok_or_else(|| format!("{} is not UTF-8", word.escaped()))
    };
    Ok(options.iter().map(text).collect::<Result<_, String>>()?)
}

/// Returns the path of hugelift as the unit sees it: that of this program, or of a package in an image.
fn program(tree: &Tree) -> Result<String, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::new(format!("own path: {error}")))?;
    let places = [own, "/usr/bin/hugelift".into(), "/usr/local/bin/hugelift".into()];
    let found = places.iter().find(|path| tree.path(path).exists());
    if let Some(path) = found {
        check(path, &tree.path(path))?;
    }
    let found = found.ok_or_else(|| {
        format!("there is no {}: install hugelift there first", tree.path(&places[1]).escaped())
    })?;
    Ok(found.to_str().ok_or("the path of hugelift is not UTF-8")?.to_string())
}

/// Checks that nobody but root can replace the program, which is `here` for this process: the unit starts it with its own rights. Where it lies for users, units
/// often do not see it (ProtectHome= and PrivateTmp= in systemd.exec(5)).
fn check(path: &Path, here: &Path) -> Result<(), Failure> {
    let refused = |why: &str| {
        let path = path.escaped();
        Err(Failure::new(format!("{path} {why}: install hugelift, as by 'make install', and call that one")))
    };
    if ["/home", "/root", "/tmp", "/run/user"].iter().any(|folder| path.starts_with(folder)) {
        return refused("is in a folder that units may not see");
    }
    let failed = |error| Failure::new(format!("{}: {error}", here.escaped()));
    let entry = Entry::find(here).map_err(failed)?;
    let stat = entry.stat().map_err(failed)?;
    if !entry.is_changed_by_trusted_alone(stat.st_uid, stat.st_mode) {
        return refused("can be replaced by others than root and you");
    }
    Ok(())
}

/// What the files of a unit say, without hugelift's own drop-ins.
struct Texts {
    unit: String,
    /// By the names of their files.
    drop_ins: std::collections::BTreeMap<String, String>,
}

impl Texts {
    fn read(tree: &Tree, files: &UnitFiles, own: &Own) -> Result<Texts, Failure> {
        let unit = unit_files::read(tree, &files.file)?;
        let others = files.drop_ins.iter().filter(|(_, path)| !own.has(path));
        let read = |(name, path): (&String, &PathBuf)| Ok((name.clone(), unit_files::read(tree, path)?));
        Ok(Texts { unit, drop_ins: others.map(read).collect::<Result<_, String>>()? })
    }

    /// Returns what they say together, also with a drop-in more.
    fn unit(&self, more: Option<(&str, &str)>) -> Result<Unit, units::Refusal> {
        let mut drop_ins: std::collections::BTreeMap<&str, &str> =
            self.drop_ins.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        drop_ins.extend(more);
        Unit::read([self.unit.as_str()].into_iter().chain(drop_ins.into_values()))
    }
}

/// Writes the drop-in instead of those of earlier times. Takes it back if systemd finds a fault that it did not find before, if
/// another step fails, and if a signal is to end this process meanwhile.
fn write(tree: &Tree, files: &UnitFiles, own: &Own, place: &Place) -> Result<(), Failure> {
    let systemd = Systemd::of(tree);
    let was_sound = systemd.verify(&files.name, None);
    whole(|held| {
        let placed = place.write(tree);
        let checked = placed.is_ok().then(|| {
            own.without(&place.path).remove(tree)?;
            match (was_sound, systemd.verify(&files.name, Some(held))) {
                (Err(fault), _) => say(&format!(
                    "systemd-analyze does not judge it, since it finds a fault without it too: {fault}"
                )),
                (Ok(()), Err(fault)) => {
                    return Err(Failure::new(format!(
                        "the drop-in is taken back: systemd-analyze says {fault}"
                    )));
                }
                (Ok(()), Ok(())) => {}
            }
            Ok(())
        });
        let signal = held.came();
        let is_refused = checked.as_ref().is_none_or(Result::is_err);
        let undone = if is_refused || signal.is_some() { own.put_back(tree, &place.path) } else { Ok(()) };
        if let (Some(signal), Ok(())) = (signal, &undone) {
            return Err(Failure::new(format!("the drop-in is taken back: {signal}")));
        }
        placed?;
        undone?;
        checked.unwrap_or(Ok(()))?;
        console::print(&printed(tree, place))?;
        systemd.reload()
    })
}

/// Does what must not be left half done: a signal that ends this process has its effect afterwards.
fn whole(work: impl FnOnce(&HeldSignals) -> Result<(), Failure>) -> Result<(), Failure> {
    let held = HeldSignals::hold().map_err(|error| Failure::new(format!("cannot hold signals: {error}")))?;
    let done = work(&held);
    if let (Err(failure), Some(_)) = (&done, held.came()) {
        // Nothing can say it after that.
        say(&failure.message);
    }
    drop(held);
    done
}

fn printed(tree: &Tree, place: &Place) -> String {
    let lines: String = place.text.lines().map(|line| format!("  {line}\n")).collect();
    let path: &Path = &tree.path(&place.path);
    format!("wrote {}:\n{lines}", path.escaped())
}
