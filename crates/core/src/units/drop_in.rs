// SPDX-License-Identifier: Apache-2.0
//! The drop-in by which hugelift starts what a unit starts.

use super::refusal::Refusal;
use super::unit::Unit;
use super::words::{Variables, quoted};

/// The name of the drop-in's file: behind those of packages, and before what 'systemctl edit' makes.
pub const FILE: &str = "60-hugelift.conf";
/// Its name where a later file sets `ExecStart=` too.
pub const LAST_FILE: &str = "zz-hugelift.conf";
/// How its first line begins. hugelift removes no other file.
pub const MARK: &str = "# Made by 'hugelift wrap'";

/// Settings that are seccomp filters, or bring some (systemd.exec(5)).
const FILTERS: [&str; 16] = [
    "SystemCallFilter",
    "SystemCallArchitectures",
    "SystemCallLog",
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
    "DynamicUser",
];

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
    let mut notes = notes(name, unit);
    let is_forking = unit.setting("Type") == Some("forking");
    if is_forking && unit.setting("PIDFile").is_none() && !options.iter().any(|word| word == "--eager") {
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

fn notes(name: &str, unit: &Unit) -> Vec<String> {
    let mut notes = Vec::new();
    if unit.setting("Type") == Some("oneshot") {
        notes.push("it has Type=oneshot: a program that ends soon gains nothing".into());
    }
    if let Some(shell) = unit.commands.iter().find(|command| command.is_shell()) {
        notes.push(format!(
            "{} starts other programs, which are lifted only with the option '--children lift'",
            shell.program()
        ));
    }
    if let Some(named) = unit.commands.iter().find(|command| !command.program().contains('/')) {
        notes.push(format!("{} is looked up in the PATH of the unit", named.program()));
    }
    let filters: Vec<&str> = FILTERS.into_iter().filter(|key| unit.is_on(key)).collect();
    if let Some(first) = filters.first() {
        notes.push(format!(
            "{first}= is a seccomp filter: if it does not let hugelift work, the program starts as it is, and 'hugelift \
             attach --watch --unit {}' lifts it",
            plain(name)
        ));
    }
    let limits = ["MemoryMax", "MemoryHigh", "MemoryLimit"];
    if limits.into_iter().any(|key| unit.setting(key).is_some_and(|value| value != "infinity")) {
        notes.push("it has a memory limit: copies need the option '--spare SIZE'".into());
    }
    notes
}
