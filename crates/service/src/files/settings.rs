// SPDX-License-Identifier: Apache-2.0
//! What the daemon is to do, read from its files: at its start, and at each SIGHUP.

use hugelift_core::keep::Config;
use hugelift_core::printable::Escape as _;
use hugelift_core::service::policy::Policy;
use hugelift_linux::service_policy::{self, IfAbsent};
use std::path::{Path, PathBuf};

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The files to keep.
    pub keep: Config,
    /// Which processes are taken, and what is done with them; none for `hugelift keep`.
    pub policy: Option<Policy>,
    /// Bytes of data files of these processes that a round may read.
    pub observed: u64,
}

/// Returns the memory of the machine in bytes (sysinfo(2)).
pub fn memory() -> u64 {
    nix::sys::sysinfo::sysinfo().map_or(0, |info| info.ram_total())
}

/// Where the settings are read from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The configuration of `hugelift keep`.
    Keep(PathBuf),
    /// The configuration of `hugelift service`, and the folder of its drop-ins.
    Service(PathBuf, PathBuf),
}

impl Source {
    /// Returns the configuration's path.
    pub fn path(&self) -> &Path {
        match self {
            Source::Keep(path) | Source::Service(path, _) => path,
        }
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// One line: a file cannot be read, or what is wrong in it.
    pub fn read(&self) -> Result<Settings, String> {
        match self {
            Source::Keep(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| format!("cannot read {}: {e}", path.escaped()))?;
                let keep = Config::parse(&text).map_err(|e| format!("{}: {e}", path.escaped()))?;
                Ok(Settings { keep, policy: None, observed: 0 })
            }
            Source::Service(path, drop_ins) => {
                let policy = Policy::parse(&service_policy::read(path, drop_ins, IfAbsent::Refused)?)?;
                let observed = policy.limits(memory()).memory;
                Ok(Settings { keep: policy.keep.clone().unwrap_or_default(), policy: Some(policy), observed })
            }
        }
    }
}
