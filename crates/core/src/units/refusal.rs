// SPDX-License-Identifier: Apache-2.0
//! Why hugelift does not start what a unit starts.

use thiserror::Error;

/// A unit that is left as it is.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// A unit that starts nothing: `Type=oneshot` with `ExecStop=` alone, or a file that is no service.
    #[error("it has no ExecStart=: there is no program to start")]
    Nothing,
    /// systemd refuses it too, or an escape hides a prefix.
    #[error("its ExecStart= cannot be read: {0}")]
    Unreadable(String),
    /// hugelift starts the program already.
    #[error("its ExecStart= starts {0} already: change it where it is written")]
    Wrapped(String),
    /// `@` names another `argv[0]`, which `hugelift run` cannot pass on. `|` starts a shell.
    #[error(
        "its ExecStart= has the prefix {0} in front of {1}, which 'hugelift run' cannot keep: write the drop-in by hand"
    )]
    Prefix(char, String),
    /// The program is started in a root folder of its own.
    #[error("{0} gives it a root folder of its own, where hugelift may not be: write the drop-in by hand")]
    Root(String),
    /// Only some files may be executed.
    #[error("{0} forbids executing files: first add hugelift to ExecPaths=, then write the drop-in by hand")]
    NoExec(String),
}
