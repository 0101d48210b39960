// SPDX-License-Identifier: Apache-2.0
//! Which processes are meant: by id, by name, by control group, by systemd unit.

use crate::failure::Failure;
use crate::options::heading;
use crate::process_id;
use clap::Args;
use globset::GlobSet;
use hugelift_core::policy::matcher;
use hugelift_core::printable::Escape;
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::shared_memory::is_part_of_its_parent;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How many directories are read at most below a control group: a limit for very large trees.
const MAX_GROUPS: usize = 100_000;

/// The processes that are meant.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct SelectArgs {
    /// Processes by their ids
    #[arg(value_name = "PID", value_parser = process_id::parse_or_name)]
    pids: Vec<u32>,

    /// Processes whose name, or whose program's file name, matches (repeatable)
    #[arg(long, value_name = "GLOB", help_heading = heading::SELECT)]
    name: Vec<String>,

    /// Processes of a control group and of those below it, by its path as in
    /// /proc/PID/cgroup, or below /sys/fs/cgroup (repeatable)
    #[arg(long, value_name = "PATH", help_heading = heading::SELECT)]
    cgroup: Vec<PathBuf>,

    /// Processes of a systemd unit (repeatable)
    #[arg(long, value_name = "NAME", help_heading = heading::SELECT)]
    unit: Vec<String>,
}

/// The processes that are meant, now or later.
#[derive(Debug)]
pub struct Selection {
    /// By their ids.
    pub pids: BTreeSet<u32>,
    /// By what they are.
    pub choices: Vec<Choice>,
}

/// What processes have in common.
#[derive(Debug)]
pub enum Choice {
    /// `--name`: the pattern as it was written, and what it matches.
    Name(String, GlobSet),
    /// `--cgroup`
    Group(PathBuf),
    /// `--unit`
    Unit(String),
}

impl SelectArgs {
    /// Returns what is meant.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub fn selection(&self) -> Result<Selection, Failure> {
        let mut choices = Vec::new();
        for pattern in &self.name {
            let glob = matcher(std::slice::from_ref(pattern)).map_err(|e| format!("--name: {e}"))?;
            choices.push(Choice::Name(pattern.clone(), glob));
        }
        choices.extend(self.cgroup.iter().cloned().map(Choice::Group));
        choices.extend(self.unit.iter().cloned().map(Choice::Unit));
        Ok(Selection { pids: self.pids.iter().copied().collect(), choices })
    }

    /// Returns the processes, each once, by id; never this one unless it was named by its id.
    ///
    /// # Errors
    /// A pattern is malformed, or one of the choices has no process.
    pub fn processes(&self) -> Result<BTreeSet<u32>, Failure> {
        let Selection { mut pids, choices } = self.selection()?;
        for choice in choices {
            pids.extend(choice.processes()?);
        }
        Ok(pids)
    }
}

impl Choice {
    /// Returns the processes that are meant, never this one.
    ///
    /// # Errors
    /// There is none.
    pub fn processes(&self) -> Result<BTreeSet<u32>, Failure> {
        let mut others: BTreeSet<u32> = Process::all().unwrap_or_default().into_iter().collect();
        others.remove(&std::process::id());
        let found = self.find(&others);
        match found.is_empty() {
            true => Err(Failure::new(format!("{self}: no process; see {}", self.listed_by()))),
            false => Ok(found),
        }
    }

    /// Returns the processes among `candidates` that are meant. A child of vfork(2) is a part of its parent until it executes a
    /// program.
    pub fn find(&self, candidates: &BTreeSet<u32>) -> BTreeSet<u32> {
        let found = match self {
            Choice::Name(_, glob) => candidates.iter().copied().filter(|pid| is_named(*pid, glob)).collect(),
            Choice::Group(path) => of_group(path),
            Choice::Unit(name) => of_unit(name),
        };
        let is_part = |pid: &u32| Process::new(*pid).stat().is_ok_and(|stat| is_part_of_its_parent(&stat));
        found.intersection(candidates).copied().filter(|pid| !is_part(pid)).collect()
    }
}

impl Choice {
    /// Returns a command that lists what can be chosen in this way.
    fn listed_by(&self) -> &'static str {
        match self {
            Choice::Name(..) => "ps -e",
            Choice::Group(_) => "systemd-cgls, or ps -e -o pid,cgroup",
            Choice::Unit(_) => "systemctl list-units --state=running",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Name(pattern, _) => write!(f, "--name {}", OsStr::new(pattern).escaped()),
            Choice::Group(path) => write!(f, "--cgroup {}", path.escaped()),
            Choice::Unit(name) => write!(f, "--unit {}", OsStr::new(name).escaped()),
        }
    }
}

/// Returns whether the name of a process, or the file name of its program, matches.
fn is_named(pid: u32, glob: &GlobSet) -> bool {
    let process = Process::new(pid);
    let program = fs::read_link(process.path("exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| glob.is_match(name))
        || process.stat().is_ok_and(|stat| glob.is_match(stat.comm.as_os_str()))
}

/// Returns the processes of a control group and of those below it: in each hierarchy that has it or, if the path begins
/// where they are mounted, in that one.
fn of_group(path: &Path) -> BTreeSet<u32> {
    places(path).into_iter().flat_map(|place| below(&place)).flat_map(|group| members(&group)).collect()
}

/// Returns the directories that a path of a control group may mean.
fn places(path: &Path) -> Vec<PathBuf> {
    if path.starts_with(CGROUPS) {
        return vec![path.to_path_buf()];
    }
    // Version 2 is mounted at the place itself, version 1 in a directory for each controller.
    let roots: Vec<PathBuf> = match Path::new(CGROUPS).join("cgroup.controllers").exists() {
        true => vec![CGROUPS.into()],
        false => fs::read_dir(CGROUPS).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect(),
    };
    let inside = path.strip_prefix("/").unwrap_or(path);
    roots.into_iter().map(|root| root.join(inside)).collect()
}

/// Returns the processes of a unit of the system's systemd: a control group has its name.
fn of_unit(name: &str) -> BTreeSet<u32> {
    let top = Path::new(CGROUPS);
    let is_unified = top.join("cgroup.controllers").exists();
    let is_unit = |group: &PathBuf| {
        group.strip_prefix(top).is_ok_and(|inside| is_group_of_unit(inside, is_unified, name))
    };
    let units = below(top).into_iter().filter(is_unit);
    units.flat_map(|unit| below(&unit)).flat_map(|group| members(&group)).collect()
}

/// Returns whether a control group is that of a unit. Without a suffix the unit is a service. Users and
/// containers can make groups of any name below their own, which are no units of the system: around a unit there
/// are only slices.
fn is_group_of_unit(inside: &Path, is_unified: bool, name: &str) -> bool {
    const SUFFIXES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
    let unit = match SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
        true => name.to_string(),
        false => format!("{name}.service"),
    };
    // In version 1 the first directory is that of a controller.
    let mut parts: Vec<&OsStr> = inside.iter().skip(usize::from(!is_unified)).collect();
    let is_slice = |part: &&OsStr| part.as_bytes().ends_with(b".slice") && *part != "user.slice";
    parts.pop() == Some(OsStr::from_bytes(unit.as_bytes())) && parts.iter().all(is_slice)
}

/// Returns a directory and those below it.
fn below(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![top.to_path_buf()];
    while let Some(dir) = next.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let inner = entries.filter_map(Result::ok).filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        next.extend(inner.map(|entry| entry.path()));
        found.push(dir);
        if found.len() >= MAX_GROUPS {
            break;
        }
    }
    found
}

fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_units() {
        for (inside, is_unified, name, expected) in [
            ("system.slice/php8.2-fpm.service", true, "php8.2-fpm", true),
            ("system.slice/system-getty.slice/getty@tty1.service", true, "getty@tty1.service", true),
            ("memory/system.slice/mariadb.service", false, "mariadb", true),
            ("system.slice", true, "system.slice", true),
            ("system.slice/mariadb.service", true, "maria", false),
            (
                "user.slice/user-1000.slice/user@1000.service/app.slice/mariadb.service",
                true,
                "mariadb",
                false,
            ),
            ("system.slice/docker-5f.scope/system.slice/mariadb.service", true, "mariadb", false),
            ("docker/5f/system.slice/mariadb.service", true, "mariadb", false),
            ("user.slice/mariadb.service", true, "mariadb", false),
        ] {
            assert_eq!(is_group_of_unit(Path::new(inside), is_unified, name), expected, "{inside}");
        }
    }
}
