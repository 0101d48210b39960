// SPDX-License-Identifier: Apache-2.0
//! Both files, while they are compared.

use super::file::{Elf, Section};
use super::flaw::Flaw;
use crate::separate::distances::Distances;

/// What was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// Bytes of memory that were compared.
    pub bytes: u64,
    /// Addresses and distances that moved as they should.
    pub addresses: u64,
    /// Bytes of padding that were found to be zeros or traps.
    pub padding: u64,
    /// Relocations.
    pub relocations: u64,
    /// Symbols of all tables.
    pub symbols: u64,
    /// Symbols that a loader's lookup finds in the copy.
    pub lookups: u64,
    /// Functions with the same rules of unwinding.
    pub functions: u64,
    /// Instructions that were decoded.
    pub instructions: u64,
    /// References of instructions from one part to another that keeps another distance.
    pub references: u64,
    /// Addresses in debug information.
    pub debug: u64,
}

/// A place in the original's memory whose bytes are not the same in the copy, or need not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Its address in the original.
    pub at: u64,
    /// Its bytes: 4 or 8, or 1 or 2 of an instruction.
    pub len: u64,
    /// What it must hold in the copy.
    pub value: u64,
    /// Another value that does as well, as nobody reads the place: the old one.
    pub or: Option<u64>,
    /// What it is, for messages.
    pub what: &'static str,
}

/// Both files, and what is known of them so far.
pub(super) struct Pair<'a> {
    pub from: Elf<'a>,
    pub to: Elf<'a>,
    pub distances: &'a Distances,
    pub places: Vec<Place>,
    pub proof: Proof,
}

impl Pair<'_> {
    /// Returns where `address` lies in the copy. An address between parts moves if both neighbours move by
    /// the same distance.
    pub fn image(&self, address: u64) -> Option<u64> {
        let parts = self.distances.parts();
        if let Some(to) = self.distances.image(address) {
            return Some(to);
        }
        let behind = parts.partition_point(|part| part.start <= address);
        let before = behind.checked_sub(1).and_then(|i| parts.get(i));
        let by = match (before, parts.get(behind)) {
            (Some(a), Some(b)) => (a.by == b.by).then_some(a.by)?,
            (Some(a), None) | (None, Some(a)) => a.by,
            (None, None) => return None,
        };
        Some(address.wrapping_add(by))
    }

    /// Returns where `address` lies in the copy; `what` holds it.
    pub fn moved(&self, address: u64, what: &str) -> Result<u64, Flaw> {
        let said =
            || Flaw::Undecided(format!("{what} is {address:#x}, which lies between the parts that move"));
        self.image(address).ok_or_else(said)
    }

    /// Adds the place of an absolute address of 8 bytes, which must move.
    pub fn add(&mut self, at: u64, address: u64, what: &'static str) -> Result<(), Flaw> {
        let value = self.moved(address, what)?;
        self.places.push(Place { at, len: 8, value, or: None, what });
        Ok(())
    }

    /// Returns whether everything moves by one distance, so that no distance between two places changes.
    pub fn uniform(&self) -> bool {
        self.distances.parts().windows(2).all(|w| w[0].by == w[1].by)
    }

    /// Returns whether no address moves.
    pub fn still(&self) -> bool {
        self.distances.parts().iter().all(|part| part.by == 0)
    }

    /// Returns the name of the section that holds `addr` in the original, for messages.
    pub fn near(&self, addr: u64) -> String {
        let holds = |s: &&Section| s.allocated() && s.addr <= addr && addr < s.end();
        self.from.sections.iter().find(holds).map_or_else(|| "no section".into(), Section::says)
    }
}
