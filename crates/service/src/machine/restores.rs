// SPDX-License-Identifier: Apache-2.0
//! Restores processes: `hugelift restore`, a process of its own.

use super::child::start;
use crate::journal::{Level, log};
use hugelift_core::proc_stat::Identity;
use std::process::{Child, Stdio};

/// Those that run.
#[derive(Debug, Default)]
pub struct Restores(Vec<Child>);

impl Restores {
    /// Restores these processes.
    pub fn begin(&mut self, processes: &[Identity]) {
        self.reap();
        if processes.is_empty() {
            return;
        }
        let pids = processes.iter().map(|(pid, _)| pid.to_string());
        let words: Vec<String> = ["restore".to_string()].into_iter().chain(pids).collect();
        match start(&words, Stdio::null(), Stdio::null()) {
            Ok(child) => self.0.push(child),
            Err(error) => log(Level::Warning, &format!("cannot start hugelift {}: {error}", words.join(" "))),
        }
    }

    /// Takes note of those that have ended.
    fn reap(&mut self) {
        self.0.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}
