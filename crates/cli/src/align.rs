// SPDX-License-Identifier: Apache-2.0
//! `hugelift align`: copies an ELF file so that the page cache can hold its code in huge pages.

mod args;
mod debug;
mod place;
mod separated;

use crate::FAILED;
use crate::failure::{Exit, Failure};
use crate::output;
pub use args::AlignArgs;
use debug::DebugInfo;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Escape;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::temporary::Temporary;
use hugelift_relink::align::{Layout, Placed, Refusal};
use hugelift_relink::loaded::Loaded;
use hugelift_relink::relay::{Original, RelayError, publish, set_mode};
use hugelift_relink::separate::Options;
use place::check_output;
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;

/// Exit status where no copy is made because it would gain nothing.
const NOTHING: i32 = 1;

impl From<RelayError> for Failure {
    fn from(error: RelayError) -> Failure {
        let status = match error {
            RelayError::Refused { source: Refusal::TooSmall { .. }, .. } => NOTHING,
            RelayError::Inseparable { ref source, .. } if source.gains_nothing() => NOTHING,
            _ => FAILED,
        };
        Failure { status, message: error.to_string() }
    }
}

/// Writes the copy, and prints what it gains.
///
/// # Errors
/// The file is not an ELF object that can be laid out anew, there is nothing to gain, or the copy
/// cannot be written.
pub fn run(args: &AlignArgs) -> Result<Exit, Failure> {
    let original = Original::read(&args.input)?;
    // A symbolic link stays one.
    let place = args.output.as_deref().map(|output| check_output(&original, output)).transpose()?;
    let place = place.filter(|_| !args.dry_run);
    if args.separate {
        let least = args.least.map_or(Options::usual(args.page_size), |least| Options { least });
        return separate(args, &original, place.as_ref(), least);
    }
    let layout = original.layout(args.page_size)?;
    if let Some(place) = place {
        publish_copy(args, &original, original.copy_beside(&layout, &place)?, &place)?;
    }
    let summary = Summary::new(args, &original, &layout);
    console::print(&if args.json { output::json(&summary)? } else { summary.text(&layout) })?;
    Ok(Exit::SUCCESS)
}

/// Separates the code, and the debug information with it.
fn separate(
    args: &AlignArgs,
    original: &Original,
    place: Option<&Entry>,
    least: Options,
) -> Result<Exit, Failure> {
    let debug = args.debug.as_deref().map(|path| DebugInfo::find(args, original, path)).transpose()?;
    let (separated, new) = match &debug {
        None => (original.separated(args.page_size, least)?, None),
        Some(debug) => {
            let (separated, new) =
                original.separated_with(&debug.original, debug.name(), args.page_size, least)?;
            (separated, Some(new))
        }
    };
    if let Some(place) = place {
        let copy = original.separated_beside(&separated, place)?;
        if let Loaded::NotLoaded(why) = original.compared(&separated, copy.file())? {
            say(&format!("{}: the loaded copy was not compared: {why}", args.input.escaped()));
        }
        copy.check().map_err(|error| Failure::new(format!("{}: {error}", args.input.escaped())))?;
        // First, so that the program never names what is not there.
        if let Some((debug, new)) = debug.as_ref().zip(new.as_ref()) {
            debug.write(new, original, place)?;
        }
        publish_copy(args, original, copy, place)?;
    }
    let written = debug.as_ref().zip(new.as_ref()).map(|(debug, new)| debug.written(new));
    let summary = separated::Summary::new(args, original, &separated, written);
    console::print(&if args.json { output::json(&summary)? } else { summary.text(original, &separated) })?;
    Ok(Exit::SUCCESS)
}

/// Gives a copy its mode and its name.
fn publish_copy(
    args: &AlignArgs,
    original: &Original,
    copy: Temporary,
    place: &Entry,
) -> Result<(), Failure> {
    let mode = original.meta.mode() & 0o7777;
    if mode & 0o6000 != 0 {
        say(&format!("{}: the copy is not set-uid or set-gid", args.input.escaped()));
    }
    if original.has_capabilities() {
        let name = args.input.escaped();
        say(&format!("{name}: the copy is without the file capabilities (getcap); see setcap(8)"));
    }
    set_mode(&copy, mode & 0o777, place)?;
    Ok(publish(copy, place)?)
}

/// A layout and what it gains, as JSON.
#[derive(Serialize)]
struct Summary {
    version: u32,
    input: String,
    /// None in a dry run.
    output: Option<String>,
    page_size: u64,
    bytes_before: u64,
    bytes_after: u64,
    huge_bytes_before: u64,
    huge_bytes_after: u64,
    aslr_bits_lost: u32,
    segments: Vec<SegmentSummary>,
}

#[derive(Serialize)]
struct SegmentSummary {
    prot: String,
    address: u64,
    bytes: u64,
    offset_before: u64,
    offset_after: u64,
    align_before: u64,
    align_after: u64,
    huge_bytes_before: u64,
    huge_bytes_after: u64,
    stuck: Option<String>,
}

impl Summary {
    fn new(args: &AlignArgs, original: &Original, layout: &Layout) -> Summary {
        let page = layout.page;
        let based = layout.base_aligned_before();
        let before = |s: &Placed| if based && s.congruent_before(page) { s.whole } else { 0 };
        let segment = |s: &Placed| SegmentSummary {
            prot: s.prot.to_string(),
            address: s.vaddr.0,
            bytes: s.filesz,
            offset_before: s.from,
            offset_after: s.to,
            align_before: s.align_from,
            align_after: s.align_to,
            huge_bytes_before: before(s),
            huge_bytes_after: s.huge_after(page),
            stuck: s.stuck.map(|why| why.to_string()),
        };
        Summary {
            version: 1,
            input: args.input.escaped().to_string(),
            output: args.output.as_ref().filter(|_| !args.dry_run).map(|o| o.escaped().to_string()),
            page_size: page.bytes(),
            bytes_before: original.meta.len(),
            bytes_after: layout.bytes,
            huge_bytes_before: layout.segments.iter().map(before).sum(),
            huge_bytes_after: layout.segments.iter().map(|s| s.huge_after(page)).sum(),
            aslr_bits_lost: layout.aslr_bits_lost(),
            segments: layout.segments.iter().map(segment).collect(),
        }
    }

    fn text(&self, layout: &Layout) -> String {
        let mut out = String::new();
        let name = self.output.as_ref().unwrap_or(&self.input);
        let state = match (layout.is_identity(), layout.moved()) {
            (true, _) => "aligned already".to_string(),
            (false, false) => "its segments need no padding, only a larger p_align".to_string(),
            (false, true) => format!("{} of padding", human_bytes(self.bytes_after - self.bytes_before)),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name}: {}, {state}", human_bytes(self.bytes_after));
        for (s, placed) in self.segments.iter().zip(&layout.segments).filter(|(_, p)| p.whole > 0) {
            let [before, after, of] = [s.huge_bytes_before, s.huge_bytes_after, s.bytes].map(human_bytes);
            let _ = write!(out, "  {} at {:#x}: {after} of {of} can be huge", s.prot, s.address);
            let _ = match &s.stuck {
                Some(why) => writeln!(out, "; {why}"),
                None if before == after => writeln!(out, ", as before"),
                None if placed.congruent_before(layout.page) => {
                    writeln!(out, ", before only by a lucky load address")
                }
                None => writeln!(out, ", before {before}"),
            };
        }
        if self.aslr_bits_lost > 0 {
            let lost = self.aslr_bits_lost;
            let _ = writeln!(out, "  its load address has {lost} random bits fewer");
        }
        out
    }
}
