// SPDX-License-Identifier: Apache-2.0
//! Gives the code of an ELF file huge pages of its own: `hugelift align --separate`.
//!
//! `align` moves offsets in the file only, so that code shares its first and last huge page with what
//! lies beside it, and those stay small. Here *addresses* move too. There are three ways; `layout` chooses.
//!
//! ```text
//! before            [ headers, symbols ][ code ][ rodata ][ data ]
//! Way::Code         [ headers, symbols ]    |ttt code|[ rodata ][ data ]      | = boundary of a huge page
//!
//! before            [ headers, constants ][ code ][ data ]
//! Way::All          [ headers, 0000000000 headers, consta|nts code ]|[ data ]
//! ```
//!
//! [`Way::Code`] moves the code and all behind it by one distance, so that the code ends on a boundary of a
//! huge page, and fills it up at its start with traps (`t`). What lies before the code is tables of the
//! linker, of which each kind of reference is known. Code, read-only data and data keep their distances, so
//! references between them that no table names, such as those in jump tables, stay right.
//!
//! [`Way::All`] moves everything by one distance. It is for files that have constants or code before the
//! code: only what holds an absolute address changes. Constants that lie in a huge page of the code become executable
//! (`extents`).
//!
//! [`Way::Stay`] moves no address: it is for files that are linked for fixed ones. Only the edges between code and
//! constants move, so that more huge pages are whole.
//!
//! What cannot be decided from the file is refused with a [`Refusal`]; nothing is guessed. The result is laid
//! out by [`crate::align::layout`], and must pass a proof that shares no code with this module.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | the choice of the way and of the distances |
//! | `plan` | what `layout` has chosen, and all other steps follow |
//! | `distances` | by how much each part moves |
//! | `extents` | where each segment of the copy begins and ends |
//! | `references` | the references of code to what lies before it, relative to the instruction |
//! | `hidden` | the distances in data and in large code that no table names |
//! | `names` | the addresses before the code that the linker has named |
//! | `original` | what the original says to more than one step |
//! | `moved` | the file while its addresses are rewritten |
//! | `write` | all that holds an address, written; then the padding |
//! | `headers` | the file header, the program headers and the section table |
//! | `dynamic` | the dynamic section |
//! | `relocations` | the relocations, and the words that they find in place |
//! | `symbols` | the symbol tables |
//! | `notes` | notes and other sections that are not loaded |
//! | `mend` | the references of moved code to what stayed, written anew |
//! | `contents` | other contents, of any length, for sections that are not loaded |
//! | `unpack` | compressed debug sections, unpacked |
//! | `mini` | `.gnu_debugdata`: an ELF file with symbols, compressed in a section |
//! | `debug` | debug information: each address in it |
//! | `split` | debug information in a file of its own |
//! | `link` | `.gnu_debuglink`: the name and the checksum of that file |
//! | `gains` | what each segment gains, and what memory that costs |
//! | `separated` | the copy: its bytes, how far its parts moved, what it gains |
//! | `refusal` | why a file is not separated |
//! | [`proof`] | the proof that the copy is the original with its parts moved |

mod contents;
mod debug;
mod distances;
mod dynamic;
mod extents;
mod gains;
mod headers;
mod hidden;
mod layout;
mod link;
mod mend;
mod mini;
mod moved;
mod names;
mod notes;
mod original;
mod plan;
pub mod proof;
mod references;
mod refusal;
mod relocations;
mod separated;
mod split;
mod symbols;
#[cfg(test)]
mod tests;
mod unpack;
mod write;

pub use distances::{Distances, Part};
pub use gains::Gain;
pub use layout::Options;
pub use plan::Way;
pub use refusal::Refusal;
pub use separated::Separated;
pub use split::separate_debug;

use crate::align::{self, tables::Tables};
use hugelift_core::addr::PageSize;

/// Returns the file with compressed debug sections unpacked, and with the debug information that is an ELF file in
/// itself moved, and its tables; `None` if it has neither.
fn plain(bytes: &[u8], tables: &Tables, plan: &plan::Plan) -> Result<Option<(Vec<u8>, Tables)>, Refusal> {
    let mut news = unpack::unpacked(bytes, tables)?;
    news.extend(mini::moved(bytes, tables, plan)?);
    if news.is_empty() {
        return Ok(None);
    }
    let mut bytes = contents::replaced(bytes, tables, contents::loaded_end(tables), &news)?;
    let mut tables = Tables::parse(&bytes)?;
    unpack::rename(&mut bytes, &mut tables)?;
    Ok(Some((bytes, tables)))
}

/// Separates the code in the file `bytes` for huge pages of size `page`.
///
/// # Errors
/// Returns a [`Refusal`] that says what was seen, and where.
pub fn separate(bytes: &[u8], page: PageSize, options: Options) -> Result<Separated, Refusal> {
    let tables = Tables::parse(bytes)?;
    if layout::is_separate(&tables, page) && align::layout(bytes, page).is_ok_and(|l| l.write(bytes) == bytes)
    {
        return Err(Refusal::Already);
    }
    let header = bytes.get(..size_of_val(&tables.file)).unwrap_or_default();
    let apart = contents::with_table_apart(bytes, &tables);
    let apart = apart.map(|bytes| Tables::parse(&bytes).map(|tables| (bytes, tables))).transpose()?;
    let (bytes, tables) = apart.as_ref().map_or((bytes, &tables), |(bytes, tables)| (&bytes[..], tables));
    let plan = layout::plan(bytes, tables, page, options)?;
    // Where nothing moves, no debug information does.
    let plain = match plan.way {
        Way::Stay { .. } => None,
        _ => plain(bytes, tables, &plan)?,
    };
    let (bytes, tables) = plain.as_ref().map_or((bytes, tables), |(bytes, tables)| (&bytes[..], tables));
    let moved = moved::Moved::new(bytes, tables, &plan);
    let mut first = write::write(moved)?;
    if let Way::All { .. } = plan.way {
        // The old file header, which the program may read, states where the section table was before it or
        // sections moved in the file.
        let start = plan.shifted(0).and_then(|start| usize::try_from(start).ok());
        let old = start.and_then(|start| first.get_mut(start..start.checked_add(header.len())?));
        old.ok_or(Refusal::Layout(align::Refusal::TooLarge))?.copy_from_slice(header);
    }
    let layout = match (align::layout(&first, page), &plan.way) {
        (Err(_), Way::Stay { why }) => return Err(Refusal::clone(why)),
        (layout, _) => layout?,
    };
    // Each segment is padded by less than a huge page, the header tables by less than that.
    let count = tables.headers.segments.len() as u64 + 2;
    let most = count.checked_mul(page.bytes()).and_then(|padding| padding.checked_add(first.len() as u64));
    if most.is_none_or(|most| layout.bytes > most) {
        return Err(Refusal::Layout(align::Refusal::TooLarge));
    }
    let written = layout.write(&first);
    if written == bytes {
        return Err(Refusal::Already);
    }
    let gains = gains::gains(tables, &plan, &layout, bytes, page);
    if let Way::Stay { why } = &plan.way {
        let code = || gains.iter().filter(|gain| gain.prot.exec);
        if code().map(|gain| gain.content()).sum::<u64>() <= code().map(|gain| gain.huge_before).sum() {
            return Err(Refusal::clone(why));
        }
    }
    let before = tables.headers.segments.iter().map(|s| s.align).max().unwrap_or(0).max(align::BASE_PAGE);
    let after = layout.segments.iter().map(|s| s.align_to).max().unwrap_or(0).max(align::BASE_PAGE);
    Ok(Separated {
        way: plan.way,
        distances: plan.distances,
        bytes: written,
        gains,
        // A fixed address is not random.
        aslr_bits_lost: if tables.headers.relocatable {
            after.ilog2().saturating_sub(before.ilog2())
        } else {
            0
        },
    })
}
