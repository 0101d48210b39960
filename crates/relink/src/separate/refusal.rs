// SPDX-License-Identifier: Apache-2.0
//! Why the code of a file is not separated.

use crate::align;
use hugelift_core::addr::{Addr, PageSize, human_bytes};

/// Why the code of a file is not separated.
///
/// [`Refusal::gains_nothing`] tells those that are no obstacle from the others.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot even be laid out anew.
    #[error(transparent)]
    Layout(#[from] align::Refusal),
    /// Neither x86-64 nor AArch64.
    #[error("hugelift does not know the references of its machine ({0})")]
    Machine(u16),
    /// `ET_EXEC`.
    #[error(
        "it is linked for fixed addresses, which cannot move; without --separate its offsets in the file can"
    )]
    Fixed,
    /// No `PT_DYNAMIC`, or an empty one.
    #[error("it has no dynamic section, so nothing names its absolute addresses")]
    NoDynamic,
    /// No executable segment.
    #[error("it has no code")]
    NoCode,
    /// Not worth it.
    #[error(
        "nothing to gain: it has {} of code, less than the {} that are worth a page of {page}",
        human_bytes(*code), human_bytes(*least)
    )]
    LittleCode {
        /// Bytes of code.
        code: u64,
        /// What was asked for.
        least: u64,
        /// The size wanted.
        page: PageSize,
    },
    /// The copy would be the file.
    #[error("nothing to gain: its code has huge pages of its own already")]
    Already,
    /// `Way::All` gives no page more than moving offsets does.
    #[error(
        "nothing to gain: to move all of it gives its code no more huge pages than align without --separate, and \
         its code cannot move alone: {why}"
    )]
    NoBetter {
        /// Why the other way is not open.
        why: Box<Refusal>,
    },
    /// The loader maps the first segment elsewhere.
    #[error("it is linked for {0}, not for address 0")]
    Base(Addr),
    /// A segment, section or table lies across the place where bytes must be inserted.
    #[error("{what} lies across the offset {at:#x}, where its code begins")]
    Across {
        /// What lies there.
        what: String,
        /// The offset.
        at: u64,
    },
    /// It is not known who refers to this.
    #[error("the section {name} at {at} lies before its code, and hugelift does not know what refers to it")]
    Front {
        /// The section.
        name: String,
        /// Its stated address.
        at: Addr,
    },
    /// Bytes that no section names.
    #[error("bytes at {0}, before its code, belong to no section")]
    Uncovered(Addr),
    /// Code or data refers to what lies before the code, or may.
    #[error(
        "the bytes at {at} refer, or seem to refer, to {to}, which lies before the code (a number may have such a value \
         by chance)"
    )]
    Reference {
        /// Address of the instruction or the word.
        at: Addr,
        /// What it refers to.
        to: Addr,
    },
    /// With everything moved, that is no longer where the header is.
    #[error(
        "the bytes at {at} refer, or seem to refer, to the object's own ELF header or program headers, which must stay \
         at the start (a number may have such a value by chance)"
    )]
    OwnHeader {
        /// Where the reference is.
        at: Addr,
    },
    /// An address with no certain image.
    #[error("{what} at {at} holds the address {to}, which lies in no segment")]
    Between {
        /// What holds it.
        what: &'static str,
        /// Where.
        at: Addr,
        /// The address that it holds.
        to: Addr,
    },
    /// A pointer to what stays may belong to what moves.
    #[error(
        "{what} at {at}: the pointer to {to}, among the tables before its code, may belong to what moves"
    )]
    Pointer {
        /// What holds it.
        what: &'static str,
        /// Where.
        at: Addr,
        /// The address that it holds.
        to: Addr,
    },
    /// A larger alignment than the distance keeps.
    #[error("{what} at {at} is aligned to {align:#x} bytes, and would move by {by:#x}")]
    Alignment {
        /// The section or segment.
        what: String,
        /// Its stated address.
        at: Addr,
        /// Its alignment.
        align: u64,
        /// The distance.
        by: u64,
    },
    /// The loader writes to code.
    #[error("its code has relocations (DT_TEXTREL)")]
    TextRelocations,
    /// Nothing says whether its value is an address.
    #[error("its dynamic section has an entry of unknown kind {tag:#x} (value {value:#x})")]
    Tag {
        /// The tag.
        tag: i64,
        /// Its value.
        value: u64,
    },
    /// Nothing says whether its addend is an address.
    #[error("the relocation of {at} is of unknown kind {kind}")]
    Relocation {
        /// Its kind.
        kind: u32,
        /// The place that it relocates.
        at: Addr,
    },
    /// A table is cut off, or not where it should be.
    #[error("damaged ELF file: {what} at {at}")]
    Damaged {
        /// The table.
        what: &'static str,
        /// Its address, or its offset if it has none.
        at: Addr,
    },
    /// Debug information that is damaged, or of a form that hugelift does not read.
    #[error(
        "its debug information ({section} at offset {at}) cannot be read: {what}; strip --strip-debug removes it"
    )]
    Debug {
        /// The section.
        section: &'static str,
        /// Its offset in the file.
        at: Addr,
        /// What is wrong.
        what: String,
    },
    /// Debug information in a file of its own is of another program.
    #[error("it is not the debug information of this program: {what}")]
    Foreign {
        /// What differs.
        what: String,
    },
    /// A section that is not loaded and has unknown contents.
    #[error(
        "the section {name} is of an unknown kind, and what lies at offset {at} may be {to}, the address of code that \
         moves; if nothing needs the section: objcopy -R {name} removes it"
    )]
    Unknown {
        /// The section.
        name: String,
        /// The offset in the file.
        at: Addr,
        /// The address.
        to: Addr,
    },
    /// A section that holds addresses in a form that is not rewritten.
    #[error("the section {name} holds addresses, and cannot be rewritten{hint}")]
    Section {
        /// The section.
        name: String,
        /// What helps, if anything does.
        hint: &'static str,
    },
}

impl Refusal {
    /// Returns whether the file could be separated, but gains nothing by it.
    pub fn gains_nothing(&self) -> bool {
        matches!(
            self,
            Refusal::LittleCode { .. } | Refusal::NoBetter { .. } | Refusal::NoCode | Refusal::Already
        )
    }
}
