// SPDX-License-Identifier: Apache-2.0
//! What is asked for.

use crate::databases::find_postgres;
use crate::programs::find_clang;
use anyhow::{Result, ensure};
use std::process::Command;

/// The options of the command line.
pub struct Options {
    /// How often each side runs; `None` for the default of each benchmark.
    pub rounds: Option<usize>,
    /// Size of the generated code in MB.
    pub megabytes: u64,
    /// The only program to measure, where a benchmark has several; `None` for all.
    pub only: Option<String>,
}

impl Options {
    /// Returns the cases to measure, each with the command that it needs. Says which are left out because there is no
    /// such command.
    ///
    /// # Errors
    /// `--only` names none of them.
    pub fn chosen<T: Copy>(&self, cases: &[(&'static str, T)]) -> Result<Vec<(&'static str, T)>> {
        // Debian installs clang++ with a version in its name, and PostgreSQL in a folder of its version.
        self.chosen_if(cases, |needs| match needs {
            "clang++" => find_clang().is_some(),
            "postgres" => find_postgres().is_some(),
            _ => Command::new(needs).arg("--help").output().is_ok(),
        })
    }

    /// Does the same for cases with what they need, of which `is_here` says whether it is installed.
    ///
    /// # Errors
    /// `--only` names none of them.
    pub fn chosen_if<T: Copy>(
        &self,
        cases: &[(&'static str, T)],
        is_here: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'static str, T)>> {
        let is_wanted = |needs: &str| self.only.as_deref().is_none_or(|only| only == needs);
        let wanted = cases.iter().copied().filter(|(needs, _)| is_wanted(needs));
        let all: Vec<_> = wanted.collect();
        let names = || cases.iter().map(|(needs, _)| *needs).collect::<Vec<_>>().join(", ");
        ensure!(
            !all.is_empty(),
            "--only {}: not one of {}",
            self.only.as_deref().unwrap_or_default(),
            names()
        );
        let (here, missing): (Vec<_>, Vec<_>) = all.into_iter().partition(|(needs, _)| is_here(needs));
        missing.iter().for_each(|(needs, _)| println!("  SKIP: no {needs}: ci/setup.sh test"));
        Ok(here)
    }
}
