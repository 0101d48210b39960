// SPDX-License-Identifier: Apache-2.0
//! A uprobe that counts the executions of one instruction of a file, by all processes
//! (Documentation/trace/uprobetracer.rst in Linux). It needs root and tracefs.

use anyhow::{Context as _, Result};
use hugelift_core::printable::Escape;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const TRACEFS: &str = "/sys/kernel/tracing";

/// The event. It is removed when the value is dropped.
#[derive(Debug)]
pub struct Uprobe {
    event: String,
}

impl Uprobe {
    /// Starts to count at `offset` bytes in `file`.
    ///
    /// # Errors
    /// The kernel refuses the event, or there is no tracefs.
    pub fn set(file: &Path, offset: u64) -> Result<Uprobe> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let event = format!("p{}_{number}", std::process::id());
        write("uprobe_events", &format!("p:hugelift/{event} {}:{offset:#x}", file.escaped()))?;
        let probe = Uprobe { event };
        write(&probe.switch(), "1")?;
        Ok(probe)
    }

    /// Returns how many times the instruction was executed.
    ///
    /// # Errors
    /// uprobe_profile cannot be read, or has no count of this event.
    pub fn hits(&self) -> Result<u64> {
        let path = Path::new(TRACEFS).join("uprobe_profile");
        let profile = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.escaped()))?;
        // "  FILE EVENT HITS"
        let line = profile.lines().find(|l| l.split_whitespace().rev().nth(1) == Some(&self.event));
        let hits = line.and_then(|l| l.split_whitespace().next_back()?.parse().ok());
        hits.with_context(|| format!("{}: no count of {}", path.escaped(), self.event))
    }

    fn switch(&self) -> String {
        format!("events/hugelift/{}/enable", self.event)
    }
}

/// Writes one line by one write(2): the kernel reads each write as a command.
fn write(name: &str, text: &str) -> Result<()> {
    let path = Path::new(TRACEFS).join(name);
    let file = OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write '{text}' to {}", path.escaped()))
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        // An event that cannot be removed is at least switched off.
        let _ = write(&self.switch(), "0");
        let _ = write("uprobe_events", &format!("-:hugelift/{}", self.event));
    }
}
