// SPDX-License-Identifier: Apache-2.0
//! Completions for bash, zsh and fish.

use crate::values;
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::Path;

/// Each shell, and the name under which it searches for a completion of hugelift.
const FILES: [(Shell, &str); 3] =
    [(Shell::Bash, "hugelift.bash"), (Shell::Zsh, "_hugelift"), (Shell::Fish, "hugelift.fish")];

/// Writes a file for each shell.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write_all(mut command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (shell, name) in FILES {
        let mut made = Vec::new();
        clap_complete::generate(shell, &mut command, "hugelift", &mut made);
        let made = String::from_utf8_lossy(&made);
        let text = match shell {
            Shell::Bash => made.into_owned() + &values::bash(&command),
            Shell::Fish => made.into_owned() + &values::fish(&command),
            _ => values::zsh(&made),
        };
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command as Process;

    /// Returns what a shell prints; `None` if it is not installed.
    fn said(shell: &str, script: &str) -> Option<String> {
        let out = Process::new(shell).args(["-c", script]).output().ok()?;
        assert!(out.status.success(), "{out:?}");
        Some(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    #[test]
    fn issue_29_b10_completions_know_processes_and_programs() {
        let dir = tempfile::tempdir().unwrap();
        write_all(hugelift_cli::definition(), dir.path()).unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let own = std::process::id().to_string();
        let bash = |words: &str| {
            let script = format!(
                "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 f=$(complete -p hugelift); f=${{f#*-F }}; ${{f%% *}} hugelift \"${{COMP_WORDS[COMP_CWORD]}}\" \
                 \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                path("hugelift.bash")
            );
            said("bash", &script).expect("bash")
        };
        let fish = |line: &str| {
            let script = format!(
                "source {}; complete -C '{line}' | string replace -r '\\t.*' ''; true",
                path("hugelift.fish")
            );
            said("fish", &script)
        };
        let has = |all: &str, word: &str| all.lines().any(|line| line == word);
        for (words, wanted) in [
            ("attach ''", own.as_str()),
            ("attach --backing thp ''", &own),
            ("restore ''", &own),
            ("inspect ''", &own),
            ("inspect whoa", "whoami"),
            ("doctor --pid ''", &own),
            ("compare --pid ''", &own),
            ("run whoa", "whoami"),
            ("run --backing thp whoa", "whoami"),
            ("run --eager -- whoa", "whoami"),
            ("compare whoa", "whoami"),
            ("run --back", "--backing"),
            ("run --backing ''", "thp"),
        ] {
            let all = bash(&format!("hugelift {words}"));
            assert!(has(&all, wanted), "bash: {words}: {all}");
            // fish takes the value of an option for the program.
            if words.contains("--backing thp whoa") {
                continue;
            }
            if let Some(all) = fish(&format!("hugelift {}", words.replace("''", ""))) {
                assert!(has(&all, wanted), "fish: {words}: {all}");
            }
        }
        assert!(!has(&bash("hugelift run ls whoa"), "whoami"), "an argument of ls");
        let zsh = fs::read_to_string(dir.path().join("_hugelift")).unwrap();
        for part in
            ["'*::pids -- Processes by their ids:_pids'", ":NAME:{compadd", ":{_pids; _command_names -e}'"]
        {
            assert!(zsh.contains(part), "{part}");
        }
        said("zsh", &format!("emulate zsh; zsh -n {}", path("_hugelift")));
    }
}
