// SPDX-License-Identifier: Apache-2.0
//! What the daemon is to do, read from its files: at its start, and at each SIGHUP.

use hugelift_core::keep::Config;
use hugelift_core::service::policy::Policy;
use hugelift_linux::service_policy;
use std::path::PathBuf;

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The files to keep.
    pub keep: Config,
    /// Which processes are taken, and what is done with them.
    pub policy: Policy,
    /// Bytes of data files of these processes that a round may read.
    pub observed: u64,
}

/// Returns the memory of the machine in bytes (sysinfo(2)).
pub fn memory() -> u64 {
    nix::sys::sysinfo::sysinfo().map_or(0, |info| info.ram_total())
}

/// Where the settings are read from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The policy.
    pub config: PathBuf,
    /// The folder of further files, whose rules come first.
    pub drop_ins: PathBuf,
    /// The file of pods, if one is given.
    pub pods: Option<PathBuf>,
}

impl Source {
    /// Reads the settings.
    ///
    /// # Errors
    /// One line: a file cannot be read, or what is wrong in it.
    pub fn read(&self) -> Result<Settings, String> {
        let files = service_policy::read(&self.config, &self.drop_ins)?;
        let policy = Policy::parse(&files)?;
        let observed = policy.limits(memory()).memory;
        Ok(Settings { keep: policy.keep.clone().unwrap_or_default(), policy, observed })
    }
}
