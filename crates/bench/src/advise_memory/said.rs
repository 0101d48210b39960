// SPDX-License-Identifier: Apache-2.0
//! What advise says of the data of a process, and the row of the table that it is in.

use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::heat::extent::{DataVerdict, Extent, Extents};
use hugelift_measure::stats::Estimate;
use serde_json::Value;
use std::process::Command;

/// What the TLBs for data are taken to hold where the CPU does not say it: 2048 pages of 4 kB, as in the second level of
/// Intel's cores since Sunny Cove.
pub const TRIED: u64 = 2048 << 12;

/// What was said of a program, and what was measured.
pub struct Row {
    /// What was said.
    pub said: Said,
    /// Bytes that were huge in addition while they were to be.
    pub huge: u64,
    /// CPU time of the same work, huge to small; `None` if nothing could be made huge.
    pub ratio: Option<Estimate>,
}

/// What was said.
pub struct Said {
    /// The verdict on data, as advise words it.
    pub verdict: String,
    /// The data in memory.
    pub extents: Extents,
    /// What the TLBs for data hold, if the CPU says it.
    reach: Option<u64>,
}

impl Said {
    /// Asks about a process for so long, as advise takes it.
    ///
    /// # Errors
    /// advise fails, or says nothing of data.
    pub fn of(pid: u32, time: &str) -> Result<Said> {
        let mut ask = Command::new(hugelift()?);
        ask.args(["advise", "--json", "--for", time]).arg(pid.to_string());
        let out = ask.output().context("hugelift advise")?;
        ensure!(out.status.success(), "hugelift advise: {}", String::from_utf8_lossy(&out.stderr));
        let advice: Value = serde_json::from_slice(&out.stdout).context("what advise prints")?;
        let verdict = advice["data_verdict"].as_str().context("no verdict on data")?.into();
        let kind = |name: &str| {
            let number = |which: &str| advice["extents"][name][which].as_u64();
            let resident_bytes = number("resident_bytes").with_context(|| format!("no {name} data"))?;
            Ok::<_, anyhow::Error>(Extent { resident_bytes, huge_bytes: number("huge_bytes").unwrap_or(0) })
        };
        let extents =
            Extents { anonymous: kind("anonymous")?, shared: kind("shared")?, files: kind("files")? };
        Ok(Said { verdict, extents, reach: advice["data_reach_bytes"].as_u64() })
    }

    /// Returns what its rule says, with [`TRIED`] where the CPU says nothing.
    pub fn by_rule(&self) -> DataVerdict {
        self.extents.verdict(Some(self.reach.unwrap_or(TRIED)), 4096)
    }
}

/// Returns the word of a verdict, as advise prints it.
pub fn word(verdict: DataVerdict) -> &'static str {
    match verdict {
        DataVerdict::Little => "little",
        DataVerdict::Perhaps => "perhaps",
        DataVerdict::CannotTell => "cannot-tell",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_the_rule_is_tried_where_the_cpu_says_nothing() {
        let anonymous = Extent { resident_bytes: 6 << 20, huge_bytes: 0 };
        let said = |reach| Said {
            verdict: String::new(),
            extents: Extents { anonymous, ..Extents::default() },
            reach,
        };
        assert_eq!(said(None).by_rule(), DataVerdict::Little);
        assert_eq!(said(Some(4 << 20)).by_rule(), DataVerdict::Perhaps);
        assert_eq!(word(said(Some(6 << 20)).by_rule()), "little");
    }
}
