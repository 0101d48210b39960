// SPDX-License-Identifier: Apache-2.0
//! Looks up which pages a block of memory has, instead of assuming those that were asked for.
//!
//! /proc/PID/smaps counts neither the small zero page nor the huge one; /proc/PID/pagemap shows both as
//! present. So memory that is present and not counted is a zero page. `PAGEMAP_SCAN` shows whether it is
//! the huge one (Linux 6.7). On older kernels the number of page faults shows it: one for each huge page,
//! or one for each small page.

use crate::block::Block;
use crate::memory::page_faults;
use anyhow::{Context as _, Result};
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::pagemap::{huge_bytes, present_bytes};
use nix::errno::Errno;
use std::fmt;

/// The pages of a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Allocated memory on base pages.
    pub base: u64,
    /// Allocated memory on huge pages.
    pub huge: u64,
    /// Memory that is mapped to the small zero page.
    pub zero: u64,
    /// Memory that is mapped to the huge zero page.
    pub huge_zero: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use hugelift_core::addr::human_bytes;
        let (base, huge) = (base_page(), hugelift_linux::machine::thp_page());
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

/// Reads all of `block` once, so that memory never written gets its zero pages, and returns the pages that
/// it has.
///
/// # Errors
/// /proc cannot be read.
pub fn read_and_inspect(block: &Block) -> Result<Found> {
    let before = page_faults()?;
    block.touch();
    inspect(block, page_faults()? - before)
}

/// Returns the pages of `block`, which took `faults` page faults to read.
fn inspect(block: &Block, faults: u64) -> Result<Found> {
    let (own, range) = (std::process::id().cast_signed(), block.range());
    let present = present_bytes(own, range).context("cannot read /proc/self/pagemap")?;
    let usage = block.usage()?;
    let zeros = present.saturating_sub(usage.rss);
    let huge_zero = match huge_bytes(own, range) {
        Ok(huge) => huge.saturating_sub(usage.anon_huge).min(zeros),
        Err(e) if e.raw_os_error() == Some(Errno::ENOTTY as i32) => by_faults(zeros, faults),
        Err(e) => return Err(e).context("cannot scan /proc/self/pagemap"),
    };
    Ok(Found {
        base: usage.rss.saturating_sub(usage.anon_huge),
        huge: usage.anon_huge,
        zero: zeros - huge_zero,
        huge_zero,
    })
}

/// Returns how many of the `zeros` bytes are on the huge zero page: none if each small page took a fault,
/// otherwise all.
fn by_faults(zeros: u64, faults: u64) -> u64 {
    if faults.saturating_mul(base_page().bytes()) < zeros / 2 { zeros } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pages;
    use hugelift_linux::machine::{probe, thp_page};

    const LEN: u64 = 8 << 20;

    fn found(pages: Pages, written: bool) -> Option<Found> {
        thp_page()?;
        if pages == Pages::Thp && probe(None).thp_off.is_some() {
            return None;
        }
        let memory = if written { Block::filled(pages, LEN, 1) } else { Block::new(pages, LEN) };
        Some(read_and_inspect(&memory.expect("8 MB")).expect("/proc"))
    }

    #[test]
    fn base_pages_never_written_are_the_small_zero_page() {
        let nothing = Found { base: 0, huge: 0, zero: 0, huge_zero: 0 };
        if let Some(unwritten) = found(Pages::Small, false) {
            assert_eq!(unwritten, Found { zero: LEN, ..nothing });
        }
        if let Some(written) = found(Pages::Small, true) {
            assert_eq!(written, Found { base: LEN, ..nothing });
        }
    }

    #[test]
    fn huge_pages_never_written_are_the_huge_zero_page() {
        let Some(seen) = found(Pages::Thp, false) else {
            println!("SKIP: no transparent huge pages");
            return;
        };
        let zero_page = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/use_zero_page");
        if zero_page.is_ok_and(|text| text.trim() == "1") {
            assert_eq!((seen.huge_zero, seen.huge + seen.base), (LEN, 0), "{seen}");
            assert!(seen.to_string().starts_with("8 MB the "), "{seen}");
        }
        let written = found(Pages::Thp, true).expect("as before");
        assert_eq!((written.zero, written.huge_zero), (0, 0), "{written}");
        assert_eq!(written.huge + written.base, LEN, "{written}");
    }

    #[test]
    fn page_faults_tell_without_a_scan() {
        // 8 MB take 2048 faults on the small zero page, and 4 on the huge one.
        let page = base_page().bytes();
        assert_eq!(by_faults(LEN, LEN / page), 0);
        assert_eq!(by_faults(LEN, 4), LEN);
    }
}
