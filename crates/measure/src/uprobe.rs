// SPDX-License-Identifier: Apache-2.0
//! A uprobe that counts how often an instruction of a file is executed, by any process
//! (Documentation/trace/uprobetracer.rst in Linux). Needs root and tracefs.

use anyhow::{Context as _, Result};
use hugelift_core::printable::Escape;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const TRACEFS: &str = "/sys/kernel/tracing";

/// The event, gone when dropped.
#[derive(Debug)]
pub struct Uprobe {
    event: String,
}

impl Uprobe {
    /// Counts from now on, at `offset` bytes in `file`.
    ///
    /// # Errors
    /// The kernel refuses, or there is no tracefs.
    pub fn set(file: &Path, offset: u64) -> Result<Uprobe> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let event = format!("p{}_{number}", std::process::id());
        write("uprobe_events", &format!("p:hugelift/{event} {}:{offset:#x}", file.escaped()))?;
        let probe = Uprobe { event };
        write(&probe.switch(), "1")?;
        Ok(probe)
    }

    /// How often the instruction was executed.
    ///
    /// # Errors
    /// tracefs does not tell.
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

/// One call a line: the kernel takes each for a command of its own.
fn write(name: &str, text: &str) -> Result<()> {
    let path = Path::new(TRACEFS).join(name);
    let file = OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write '{text}' to {}", path.escaped()))
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        // What cannot be removed stays without effect.
        let _ = write(&self.switch(), "0");
        let _ = write("uprobe_events", &format!("-:hugelift/{}", self.event));
    }
}
