// SPDX-License-Identifier: Apache-2.0
//! Why a file is not proven to be a copy.

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
