// SPDX-License-Identifier: Apache-2.0
//! What a block of memory really is: looked up, not concluded from what was asked for.
//!
//! /proc/PID/smaps counts no zero page, small or huge; /proc/PID/pagemap shows both as present.
//! Present and not counted is thus a zero page. Whether it is the huge one `PAGEMAP_SCAN` tells
//! (Linux 6.7); before, the number of page faults: one for each huge page, or one for each small.

use crate::block::Block;
use anyhow::{Context as _, Result};
use hugelift_os::machine::base_page;
use hugelift_os::proc::pagemap::{huge_bytes, present_bytes};
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use std::fmt;

/// What is behind a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    /// Memory of its own on base pages.
    pub base: u64,
    /// Memory of its own on huge pages.
    pub huge: u64,
    /// The small zero page, again and again.
    pub zero: u64,
    /// The huge zero page, again and again.
    pub huge_zero: u64,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use hugelift_core::addr::human_bytes;
        let (base, huge) = (base_page(), hugelift_os::machine::thp_page());
        let huge = huge.map_or("huge".into(), |page| page.to_string());
        let kinds = [
            (self.base, format!("of its own on {base} pages")),
            (self.huge, format!("of its own on {huge} pages")),
            (self.zero, format!("the {base} zero page")),
            (self.huge_zero, format!("the {huge} zero page")),
        ];
        let shown: Vec<String> = kinds
            .into_iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, what)| format!("{} {what}", human_bytes(bytes)))
            .collect();
        f.write_str(if shown.is_empty() { "nothing" } else { "" })?;
        f.write_str(&shown.join(", "))
    }
}

/// Reads all of `block` once, so that what was never written gets its zero pages, and looks.
///
/// # Errors
/// /proc cannot be read.
pub fn read_and_look(block: &Block) -> Result<Behind> {
    let before = faults()?;
    block.touch();
    look(block, faults()? - before)
}

/// What is behind `block`, which took `faults` page faults to read.
fn look(block: &Block, faults: u64) -> Result<Behind> {
    let (own, range) = (std::process::id().cast_signed(), block.range());
    let present = present_bytes(own, range).context("cannot read /proc/self/pagemap")?;
    let usage = block.usage()?;
    let zeros = present.saturating_sub(usage.rss);
    let huge_zero = match huge_bytes(own, range) {
        Ok(huge) => huge.saturating_sub(usage.anon_huge).min(zeros),
        Err(e) if e.raw_os_error() == Some(Errno::ENOTTY as i32) => by_faults(zeros, faults),
        Err(e) => return Err(e).context("cannot scan /proc/self/pagemap"),
    };
    Ok(Behind {
        base: usage.rss.saturating_sub(usage.anon_huge),
        huge: usage.anon_huge,
        zero: zeros - huge_zero,
        huge_zero,
    })
}

/// Bytes of the huge zero page among `zeros`: all, or none where each small page took a fault.
fn by_faults(zeros: u64, faults: u64) -> u64 {
    if faults.saturating_mul(base_page().bytes()) < zeros / 2 { zeros } else { 0 }
}

/// Page faults of this process so far that needed no disk.
pub(crate) fn faults() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    Ok(usage.minor_page_faults().cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;
    use hugelift_os::machine::{probe, thp_page};

    const LEN: u64 = 8 << 20;

    fn behind(pages: Pages, written: bool) -> Option<Behind> {
        thp_page()?;
        if pages == Pages::Thp && probe(None).thp_off.is_some() {
            return None;
        }
        let memory = if written { Block::filled(pages, LEN, 1) } else { Block::new(pages, LEN) };
        Some(read_and_look(&memory.expect("8 MB")).expect("/proc"))
    }

    #[test]
    fn base_pages_never_written_are_the_small_zero_page() {
        let nothing = Behind { base: 0, huge: 0, zero: 0, huge_zero: 0 };
        if let Some(behind) = behind(Pages::Small, false) {
            assert_eq!(behind, Behind { zero: LEN, ..nothing });
        }
        if let Some(behind) = self::behind(Pages::Small, true) {
            assert_eq!(behind, Behind { base: LEN, ..nothing });
        }
    }

    #[test]
    fn huge_pages_never_written_are_the_huge_zero_page() {
        let Some(seen) = behind(Pages::Thp, false) else {
            println!("SKIP: no transparent huge pages");
            return;
        };
        let zero_page = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/use_zero_page");
        if zero_page.is_ok_and(|text| text.trim() == "1") {
            assert_eq!((seen.huge_zero, seen.huge + seen.base), (LEN, 0), "{seen}");
            assert!(seen.to_string().starts_with("8 MB the "), "{seen}");
        }
        let written = behind(Pages::Thp, true).expect("as before");
        assert_eq!((written.zero, written.huge_zero), (0, 0), "{written}");
        assert_eq!(written.huge + written.base, LEN, "{written}");
    }

    #[test]
    fn without_a_scan_faults_tell() {
        // 8 MB of the small zero page took 2048 faults, of the huge one 4.
        let page = base_page().bytes();
        assert_eq!(by_faults(LEN, LEN / page), 0);
        assert_eq!(by_faults(LEN, 4), LEN);
    }
}
