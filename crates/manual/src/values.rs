// SPDX-License-Identifier: Apache-2.0
//! Completions of what only the machine knows: processes, programs, systemd units. clap makes the rest.

use crate::shown;
use clap::{Arg, Command, ValueHint};
use std::collections::BTreeSet;

/// Prints the units that run, for each shell.
const UNITS: &str = "systemctl list-units --state=running --no-legend --plain 2>/dev/null";

/// What a value names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Process,
    Program,
    ProcessOrProgram,
    Unit,
}

impl Kind {
    fn of(arg: &Arg) -> Option<Kind> {
        let names = arg.get_value_names().unwrap_or_default();
        match (names.first().map(|name| name.as_str()), arg.get_value_hint()) {
            (_, ValueHint::CommandWithArguments) => Some(Kind::Program),
            (Some("PID"), _) => Some(Kind::Process),
            (Some("PROG|PID|FILE"), _) => Some(Kind::ProcessOrProgram),
            _ if arg.get_id() == "unit" => Some(Kind::Unit),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Process => "process",
            Kind::Program => "program",
            Kind::ProcessOrProgram => "both",
            Kind::Unit => "unit",
        }
    }
}

/// Returns the arguments of the commands that take such a value.
fn all(command: &Command) -> Vec<(&str, &Arg, Kind)> {
    let args = shown(command).flat_map(|inner| inner.get_arguments().map(move |arg| (inner.get_name(), arg)));
    args.filter_map(|(name, arg)| Some((name, arg, Kind::of(arg)?))).collect()
}

/// Returns the names of an option as they are typed.
fn spellings(arg: &Arg) -> impl Iterator<Item = String> {
    let long = arg.get_long().map(|long| format!("--{long}"));
    long.into_iter().chain(arg.get_short().map(|short| format!("-{short}")))
}

/// Returns the options of a command after which its value is another word.
fn with_value(command: &Command) -> BTreeSet<String> {
    let takes = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    command.get_arguments().filter(takes).flat_map(spellings).collect()
}

/// Returns what is added to the completions of bash.
pub fn bash(command: &Command) -> String {
    let (mut options, mut positional) = (String::new(), String::new());
    for (name, arg, kind) in all(command) {
        for spelling in spellings(arg) {
            options += &format!("        {name}:{spelling}) kind={} ;;\n", kind.word());
        }
        if arg.is_positional() {
            positional += &format!("            {name}) kind={} ;;\n", kind.word());
        }
    }
    let values: BTreeSet<String> = shown(command).flat_map(with_value).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    BASH.replace("OPTIONS\n", &options)
        .replace("POSITIONAL\n", &positional)
        .replace("VALUES", &values.join(" "))
        .replace("UNITS", UNITS)
}

const BASH: &str = r#"
# What only the machine knows: processes, programs, units.
_hugelift_values() {
    _hugelift "$@"
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" kind="" at
    local values=" VALUES "
    [[ $word == -* || $COMP_CWORD -lt 2 ]] && return 0
    case "${COMP_WORDS[1]}:$before" in
OPTIONS
        *)
            [[ $values == *" $before "* ]] && return 0
            case "${COMP_WORDS[1]}" in
POSITIONAL
            *) return 0 ;;
            esac
            ;;
    esac
    if [[ $kind == program && $values != *" $before "* ]]; then
        # Behind the program are its arguments.
        for ((at = 2; at < COMP_CWORD; at++)); do
            [[ ${COMP_WORDS[at]} == -* || $values == *" ${COMP_WORDS[at-1]} "* ]] || return 0
        done
    fi
    COMPREPLY=()
    [[ $kind == process || $kind == both ]] && COMPREPLY+=($(compgen -W "$(cd /proc && echo [0-9]*)" -- "$word"))
    [[ $kind == program || $kind == both ]] && COMPREPLY+=($(compgen -c -- "$word" | sort -u))
    [[ $kind == unit ]] && COMPREPLY+=($(compgen -W "$(UNITS | cut -d' ' -f1)" -- "$word"))
    return 0
}
complete -F _hugelift_values -o bashdefault -o default hugelift
"#;

/// Returns what is added to the completions of fish.
pub fn fish(command: &Command) -> String {
    let mut out = String::from("\n# What only the machine knows: processes, programs, units.\n");
    for (name, arg, kind) in all(command) {
        let inner = command.find_subcommand(name).map(with_value).unwrap_or_default();
        let skipped: Vec<String> = inner.into_iter().collect();
        let programs = format!("(__fish_complete_subcommand --fcs-skip=2 {})", skipped.join(" "));
        let found = match kind {
            Kind::Process => "(__fish_complete_pids)".to_string(),
            Kind::Program => programs,
            Kind::ProcessOrProgram => format!("(__fish_complete_pids) {programs}"),
            Kind::Unit => format!("({UNITS} | string replace -r ' .*' '')"),
        };
        let option = match (arg.get_long(), arg.get_short()) {
            (Some(long), Some(short)) => format!("-l {long} -s {short} -x"),
            (Some(long), None) => format!("-l {long} -x"),
            _ => "-f".into(),
        };
        out += &format!(
            "complete -c hugelift -n \"__fish_hugelift_using_subcommand {name}\" {option} -a \"{found}\"\n"
        );
    }
    out
}

/// Puts these values in place of clap's in the completions of zsh. Programs clap completes itself.
pub fn zsh(text: &str) -> String {
    let units = format!(":NAME:{{compadd -- ${{(f)\"$({UNITS} | cut -d\\  -f1)\"}}}}");
    let of_line = |line: &str| {
        if line.contains("--unit=[") {
            line.replace(":NAME:_default", &units)
        } else if line.starts_with("'*::pids -- ") {
            line.replace(":_default'", ":_pids'")
        } else if line.starts_with("':target -- A process") {
            line.replace(":_default'", ":{_pids; _command_names -e}'")
        } else {
            line.replace(":PID:_default", ":PID:_pids")
        }
    };
    text.lines().map(|line| of_line(line) + "\n").collect()
}
