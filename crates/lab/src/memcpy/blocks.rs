// SPDX-License-Identifier: Apache-2.0
//! The blocks of memory that are copied from and to.

use super::kind::{Kind, Source};
use super::source::{Found, read_and_inspect};
use crate::block::Block;
use crate::memory::Pages;
use crate::setting::Setting;
use anyhow::{Context as _, Result};
use hugelift_core::snapshot::ThpOff;
use hugelift_linux::machine::probe;
use hugelift_linux::machine::tree::Tree;

/// Whether memory never written may be mapped to the huge zero page.
const USE_ZERO_PAGE: &str = "/sys/kernel/mm/transparent_hugepage/use_zero_page";

/// The most blocks that have allocated memory.
pub const WRITTEN: u64 = 5;

/// One block of each kind, all of the largest size. Smaller copies use the first bytes of a block.
pub struct Blocks {
    sources: Vec<(Source, Block)>,
    destinations: Vec<Block>,
    /// The pages that the sources were found to have.
    pub found: Vec<(Source, Found)>,
}

impl Blocks {
    /// Maps the blocks, then writes or reads each, as its kind says.
    ///
    /// # Errors
    /// There is too little memory, or /proc cannot be read.
    pub fn make(bytes: usize, notes: &mut Vec<String>) -> Result<Blocks> {
        let mut kinds = vec![Pages::Small];
        match probe(None).thp_off {
            None => kinds.push(Pages::Thp),
            Some(ThpOff::Never) => notes.push(
                "no figures with huge pages: /sys/kernel/mm/transparent_hugepage/enabled is never; echo \
                 madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                    .into(),
            ),
            Some(ThpOff::Process) => {
                notes.push("no figures with huge pages: prctl(PR_SET_THP_DISABLE) was inherited".into());
            }
        }
        let mut blocks = Blocks { sources: vec![], destinations: vec![], found: vec![] };
        for pages in kinds {
            let map = || Block::new(pages, bytes as u64).context("cannot map a block");
            let filled = |byte| Block::filled(pages, bytes as u64, byte).context("cannot write a block");
            let never = map()?;
            blocks.found.push((Source::Never(pages), read_and_inspect(&never)?));
            blocks.sources.push((Source::Never(pages), never));
            let written = filled(1)?;
            blocks.found.push((Source::Written(pages), read_and_inspect(&written)?));
            blocks.sources.push((Source::Written(pages), written));
            blocks.destinations.push(filled(2)?);
            if pages == Pages::Thp {
                let block = map()?;
                if let Err(why) = blocks.unshare(block, notes) {
                    notes.push(format!("{why:#}"));
                }
            }
        }
        Ok(blocks)
    }

    /// Adds the block that only root can make: it is read while the kernel may not use the huge zero page.
    fn unshare(&mut self, block: Block, notes: &mut Vec<String>) -> Result<()> {
        let Some(value) = Tree::default().read(USE_ZERO_PAGE) else { return Ok(()) };
        if value.trim() == "0" {
            notes.push(format!(
                "{USE_ZERO_PAGE} is 0: memory never written gets huge pages of its own when it is read, so there is \
                 no trap"
            ));
            return Ok(());
        }
        if !nix::unistd::geteuid().is_root() {
            notes.push(format!("root would also see a copy from a source read while {USE_ZERO_PAGE} was 0"));
            return Ok(());
        }
        // The block keeps the pages that it gets when it is read.
        let setting = Setting::change(USE_ZERO_PAGE, "0").context("without the huge zero page")?;
        let found = read_and_inspect(&block);
        setting.restore()?;
        self.found.push((Source::Unshared, found?));
        self.sources.push((Source::Unshared, block));
        Ok(())
    }

    /// Whether all blocks for this operation exist.
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Copy(source, pages) => self.source(source).is_some() && self.destination(pages).is_some(),
            Kind::Set(pages) => self.destination(pages).is_some(),
            Kind::Read(source) => self.source(source).is_some(),
        }
    }

    fn source(&self, source: Source) -> Option<&Block> {
        self.sources.iter().find(|(s, _)| *s == source).map(|(_, block)| block)
    }

    fn destination(&self, pages: Pages) -> Option<&Block> {
        self.destinations.iter().find(|d| d.pages() == pages)
    }

    /// Does the operation once with the first `bytes` bytes. Does nothing if a block is missing.
    pub fn once(&self, kind: Kind, bytes: usize) {
        match kind {
            Kind::Copy(source, pages) => {
                if let (Some(source), Some(destination)) = (self.source(source), self.destination(pages)) {
                    destination.copy_from(source, bytes);
                }
            }
            Kind::Set(pages) => {
                if let Some(destination) = self.destination(pages) {
                    destination.set_first(bytes, 3);
                }
            }
            Kind::Read(source) => {
                if let Some(source) = self.source(source) {
                    std::hint::black_box(source.sum_first(bytes));
                }
            }
        }
    }
}
