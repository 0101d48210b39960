// SPDX-License-Identifier: Apache-2.0
//! Proves that one ELF file is another one whose parts have moved, from the bytes of both and without the
//! code that moved them.
//!
//! The proof computes which bytes the memory of the copy must have. It finds the places of the original that
//! hold an address or a distance by itself: `Place`. There it demands the address in the copy, everywhere
//! else the byte of the original, and traps or zeros in between. So an address that should have moved and did
//! not is found, and so is a byte that should not have changed and did.
//!
//! | file | demands |
//! |---|---|
//! | `headers` | header tables that a loader accepts, with every address moved |
//! | `memory` | the bytes of memory |
//! | `dynamic`, `relocations`, `symbols` | what the loader reads |
//! | `unwind` | the rules of each function, found by its new address |
//! | `code` | each reference of an instruction that leaves its part |
//! | `hidden` | nothing that may be a distance between parts without a record |
//! | `rest`, `debug` | what is not loaded: symbols, notes, debug information |
//! | `unpacked` | debug information that was compressed, uncompressed |
//! | `split` | debug information in a file of its own |

mod code;
mod debug;
mod dynamic;
mod file;
mod headers;
mod hidden;
mod memory;
mod relocations;
mod rest;
mod split;
mod symbols;
mod unpacked;
mod unwind;

use super::Distances;
use file::Elf;
pub use split::{Versions, check_debug};
pub use unpacked::DebugFile;

/// Why a file is not proven to be a copy of another one. Addresses are those of the original, unless a
/// message says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// One of the files cannot be read.
    #[error("the {which} cannot be read: {what}")]
    Unreadable {
        /// Which file.
        which: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A header table is not what it should be.
    #[error("{0}")]
    Header(String),
    /// A byte has changed where no address is.
    #[error("the byte at {at:#x} ({near}) is {found:#04x} in the copy, and was {expected:#04x}")]
    Byte {
        /// Its address.
        at: u64,
        /// The section.
        near: String,
        /// In the original.
        expected: u8,
        /// In the copy.
        found: u8,
    },
    /// An address or a distance has not become what it should.
    #[error("{what} at {at:#x} ({near}) is {found:#x} in the copy, and should be {expected:#x}")]
    Address {
        /// What holds it.
        what: &'static str,
        /// Where.
        at: u64,
        /// The section.
        near: String,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// Memory of the copy that the original does not have is neither zeros nor traps.
    #[error(
        "the copy has memory at {at:#x} (an address of the copy) that the original does not have: {what}"
    )]
    Padding {
        /// Its address in the copy.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// A symbol is not found, or is not the same.
    #[error("symbol {name}: {what}")]
    Symbol {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The unwinder would not do the same.
    #[error("the unwinding of the function at {at:#x}: {what}")]
    Unwind {
        /// Its address.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// The files have something that this check cannot decide.
    #[error("cannot be decided: {0}")]
    Undecided(String),
}

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

/// Proves that `copy` is `original` with its parts moved by `distances`.
///
/// # Errors
/// Returns the first [`Flaw`].
pub fn check(original: &[u8], copy: &[u8], distances: &Distances) -> Result<Proof, Flaw> {
    check_linked(original, copy, distances, None)
}

/// Proves that `copy` is `original` with its parts moved by `distances`, and that it names `debug` as its debug
/// information, if the original names some.
///
/// # Errors
/// Returns the first [`Flaw`].
pub fn check_linked(
    original: &[u8],
    copy: &[u8],
    distances: &Distances,
    debug: Option<DebugFile>,
) -> Result<Proof, Flaw> {
    let packed = Elf::parse(original, "original")?;
    let plain = unpacked::sections(&packed, debug)?;
    let from = packed.with(&plain);
    let to = Elf::parse(copy, "copy")?;
    let mut pair = Pair { from, to, distances, places: Vec::new(), proof: Proof::default() };
    headers::check(&pair)?;
    if pair.still() {
        // Where no address moves, nothing that holds one may change.
        memory::check(&mut pair)?;
        rest::unchanged(&pair)?;
        return Ok(pair.proof);
    }
    let relocated = relocations::check(&mut pair)?;
    dynamic::check(&mut pair, &relocated)?;
    symbols::check(&mut pair)?;
    unwind::places(&mut pair)?;
    hidden::check(&pair)?;
    code::check(&mut pair)?;
    memory::check(&mut pair)?;
    symbols::lookups(&mut pair)?;
    unwind::check(&mut pair)?;
    rest::check(&mut pair)?;
    Ok(pair.proof)
}

/// A place in the original's memory whose bytes are not the same in the copy, or need not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// Its address in the original.
    at: u64,
    /// Its bytes: 4 or 8, or 1 or 2 of an instruction.
    len: u64,
    /// What it must hold in the copy.
    value: u64,
    /// Another value that does as well, as nobody reads the place: the old one.
    or: Option<u64>,
    /// What it is, for messages.
    what: &'static str,
}

/// Both files, and what is known of them so far.
struct Pair<'a> {
    from: Elf<'a>,
    to: Elf<'a>,
    distances: &'a Distances,
    places: Vec<Place>,
    proof: Proof,
}

impl Pair<'_> {
    /// Returns where `address` lies in the copy. An address between parts moves if both neighbours move by
    /// the same distance.
    fn image(&self, address: u64) -> Option<u64> {
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
    fn moved(&self, address: u64, what: &str) -> Result<u64, Flaw> {
        let said =
            || Flaw::Undecided(format!("{what} is {address:#x}, which lies between the parts that move"));
        self.image(address).ok_or_else(said)
    }

    /// Adds the place of an absolute address of 8 bytes, which must move.
    fn add(&mut self, at: u64, address: u64, what: &'static str) -> Result<(), Flaw> {
        let value = self.moved(address, what)?;
        self.places.push(Place { at, len: 8, value, or: None, what });
        Ok(())
    }

    /// Returns whether everything moves by one distance, so that no distance between two places changes.
    fn uniform(&self) -> bool {
        self.distances.parts().windows(2).all(|w| w[0].by == w[1].by)
    }

    /// Returns whether no address moves.
    fn still(&self) -> bool {
        self.distances.parts().iter().all(|part| part.by == 0)
    }

    /// Returns the name of the section that holds `addr` in the original, for messages.
    fn near(&self, addr: u64) -> String {
        let holds = |s: &&file::Section| s.allocated() && s.addr <= addr && addr < s.end();
        self.from.sections.iter().find(holds).map_or_else(|| "no section".into(), file::Section::says)
    }
}
