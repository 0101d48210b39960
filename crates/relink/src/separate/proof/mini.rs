// SPDX-License-Identifier: Apache-2.0
//! Checks debug information that is an ELF file in itself, compressed in a section.

use super::file::Section;
use super::flaw::Flaw;
use super::pair::Pair;
use super::rest::MINI;
use super::split::{self, Versions};
use super::unpacked;

/// Checks each such section.
pub(super) fn check(pair: &mut Pair) -> Result<(), Flaw> {
    let pairs: Vec<(Section, Section)> =
        pair.from.sections.iter().copied().zip(pair.to.sections.iter().copied()).collect();
    for (old, new) in pairs.iter().filter(|(old, _)| !old.allocated() && old.has_bytes() && old.name == MINI)
    {
        mini(pair, old, new)?;
    }
    Ok(())
}

/// Checks this debug information as that in a file of its own.
fn mini<'a>(pair: &mut Pair<'a>, old: &Section<'a>, new: &Section<'a>) -> Result<(), Flaw> {
    let most = (pair.from.bytes.len() as u64).saturating_mul(64);
    let unpacked = |packed| unpacked::xz(packed, most);
    let both = unpacked(pair.from.contents(old)).zip(unpacked(pair.to.contents(new)));
    let cut = || Flaw::Undecided(format!("section {} cannot be unpacked", old.says()));
    let (original, copy) = both.ok_or_else(cut)?;
    let debug = Versions { original: &original, copy: &copy };
    let proof = split::check_split([&pair.from, &pair.to], debug, pair.distances)?;
    pair.proof.symbols += proof.symbols;
    pair.proof.debug += proof.debug;
    Ok(())
}
