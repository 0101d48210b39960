// SPDX-License-Identifier: Apache-2.0
//! What the daemon answers of a process that the policy takes.

use crate::machine::taken::Taken;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Untrusted;
use serde::{Deserialize, Serialize};

/// What is known of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its id.
    pub pid: u32,
    /// The path of its executable.
    pub program: Untrusted,
    /// Its unit of the system's manager.
    pub unit: Option<Untrusted>,
    /// The rule that takes it; none for the default.
    pub rule: Option<String>,
    /// What may be done with it.
    pub acts: Vec<String>,
    /// Bytes of it on huge pages after its last change.
    pub huge_bytes: u64,
    /// Bytes of copies of its code among these.
    pub copies_bytes: u64,
    /// Why it was not changed last time.
    pub refusal: Option<Untrusted>,
}

impl ProcessStatus {
    /// Returns what is known of a process.
    pub fn new(taken: &Taken) -> ProcessStatus {
        ProcessStatus {
            pid: taken.process.0,
            program: taken.program.clone(),
            unit: taken.unit.clone(),
            rule: taken.rule.clone(),
            acts: taken.acts.iter().map(|act| act.to_string()).collect(),
            huge_bytes: taken.bytes(),
            copies_bytes: taken.copies(),
            refusal: taken.refusal.clone(),
        }
    }

    /// Returns a line such as "1234 /usr/sbin/mariadbd (mariadb.service): databases: pagecache code: 24 MB huge".
    pub fn text(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!(" ({unit})")).unwrap_or_default();
        let rule = self.rule.as_deref().unwrap_or("default");
        let what = match &self.refusal {
            Some(why) => format!("not lifted: {why}"),
            None if self.huge_bytes == 0 => "nothing copied or collapsed".into(),
            None => format!(
                "{} huge, of which {} are copies",
                human_bytes(self.huge_bytes),
                human_bytes(self.copies_bytes)
            ),
        };
        format!("{} {}{unit}: {rule}: {}: {what}", self.pid, self.program, self.acts.join(" "))
    }
}
