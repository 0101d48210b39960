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
//! | `mini` | debug information that is an ELF file in a section |
//! | `unpacked` | debug information that was compressed, uncompressed |
//! | `split` | debug information in a file of its own |

mod code;
mod debug;
mod dynamic;
mod file;
mod flaw;
mod headers;
mod hidden;
mod memory;
mod mini;
mod pair;
mod relocations;
mod rest;
mod split;
mod symbols;
mod unpacked;
mod unwind;

pub use flaw::Flaw;
pub use pair::Proof;
pub use split::{Versions, check_debug};
pub use unpacked::DebugFile;

use super::distances::Distances;
use file::Elf;
use pair::Pair;

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
    mini::check(&mut pair)?;
    Ok(pair.proof)
}
