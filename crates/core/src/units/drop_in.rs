// SPDX-License-Identifier: Apache-2.0
//! The drop-in by which hugelift starts what a unit starts.

use super::refusal::Refusal;
use super::unit::Unit;
use super::words::{Variables, quoted};

/// The name of the drop-in's file. It sorts behind the drop-ins of packages, and before the file that 'systemctl edit' makes.
pub const FILE: &str = "60-hugelift.conf";
/// Its name where a later file sets `ExecStart=` too.
pub const LAST_FILE: &str = "zz-hugelift.conf";
/// How its first line begins. hugelift removes no other file.
pub const MARK: &str = "# Made by 'hugelift wrap'";

/// The filter of system calls, which leaves out most calls of a lift.
const CALLS: &str = "SystemCallFilter";
/// Other settings that are seccomp filters, or bring some (systemd.exec(5)). They let hugelift work, which it cannot know.
const FILTERS: [&str; 14] = [
    "SystemCallArchitectures",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "MemoryDenyWriteExecute",
    "LockPersonality",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "SystemCallLog",
];
/// Limits of memory (systemd.resource-control(5)).
const LIMITS: [&str; 3] = ["MemoryMax", "MemoryHigh", "MemoryLimit"];

/// A drop-in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DropIn {
    /// Its whole text.
    pub text: String,
    /// What may surprise: each a sentence without its end.
    pub notes: Vec<String>,
}

/// Makes the drop-in of a unit, which starts each of its commands by `hugelift run OPTIONS --`. `hugelift` is the program's
/// absolute path.
///
/// # Errors
/// The unit is better left as it is.
pub fn wrap(name: &str, unit: &Unit, hugelift: &str, options: &[String]) -> Result<DropIn, Refusal> {
    refuse(unit)?;
    let mut options = options.to_vec();
    let mut notes = notes(name, unit, &options);
    let is_forking = unit.setting("Type") == Some("forking");
    if is_forking && unit.setting("PIDFile").is_none() && !has(&options, "--eager") {
        options.insert(0, "--eager".into());
        notes.push(
            "it has Type=forking and no PIDFile=: with --eager no process stays beside the program that systemd could take \
             for the main one"
                .into(),
        );
    }
    let mut text = format!("{MARK}. Remove it by: hugelift unwrap {}\n[Service]\nExecStart=\n", plain(name));
    for command in &unit.commands {
        text += &format!("ExecStart={}\n", command.wrapped(hugelift, &options));
    }
    Ok(DropIn { text, notes })
}

fn plain(name: &str) -> String {
    quoted(name, Variables::Plain)
}

fn refuse(unit: &Unit) -> Result<(), Refusal> {
    if unit.commands.is_empty() {
        return Err(Refusal::Nothing);
    }
    let set = |keys: [&'static str; 2]| keys.into_iter().find(|key| unit.setting(key).is_some());
    if let Some(key) = set(["RootDirectory", "RootImage"]) {
        return Err(Refusal::Root(format!("{key}=")));
    }
    if unit.setting("NoExecPaths").is_some() {
        return Err(Refusal::NoExec("NoExecPaths=".into()));
    }
    unit.commands.iter().find_map(|command| command.refusal()).map_or(Ok(()), Err)
}

/// Returns whether an option is given, with its value or without.
fn has(options: &[String], option: &str) -> bool {
    options.iter().any(|word| word.split('=').next() == Some(option))
}

fn notes(name: &str, unit: &Unit, options: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if unit.setting("Type") == Some("oneshot") {
        notes.push("it has Type=oneshot: a program that ends soon gains nothing".into());
    }
    let shell = unit.commands.iter().find(|command| command.is_shell());
    if let Some(shell) = shell.filter(|_| !has(options, "--children")) {
        notes.push(format!(
            "{} starts other programs, which are lifted only with the option '--children lift'",
            shell.program()
        ));
    }
    if let Some(named) = unit.commands.iter().find(|command| !command.program().contains('/')) {
        notes.push(format!("{} is looked up in the PATH of the unit", named.program()));
    }
    notes.extend(note_of_filters(name, unit, options));
    let is_limited = |key: &str| unit.setting(key).is_some_and(|value| value != "infinity");
    if let Some(limit) = LIMITS.into_iter().find(|key| is_limited(key) && !has(options, "--spare")) {
        notes
            .push(format!("{limit}= limits its memory: copies are made only with the option '--spare SIZE'"));
    }
    notes
}

fn note_of_filters(name: &str, unit: &Unit, options: &[String]) -> Option<String> {
    if unit.is_on(CALLS) {
        return Some(format!(
            "{CALLS}= may forbid the calls of a lift, and then the program starts as it is: 'hugelift attach --watch --unit \
             {}' lifts it from outside",
            plain(name)
        ));
    }
    let filter = FILTERS.into_iter().find(|key| unit.is_on(key)).filter(|_| !has(options, "--seccomp"))?;
    Some(format!(
        "{filter}= is a seccomp filter, under which it is lifted only with the option '--seccomp try'"
    ))
}
