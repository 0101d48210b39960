// SPDX-License-Identifier: Apache-2.0
//! What `hugelift align --separate` says.

use super::args::AlignArgs;
use super::debug::Written;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Escape;
use hugelift_relink::relay::Original;
use hugelift_relink::separate::{Gain, Separated, Way};
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;

/// A separated file and what it gains, as JSON. Fields that `align` without `--separate` has too mean the same.
#[derive(Serialize)]
pub(super) struct Summary {
    version: u32,
    input: String,
    /// None in a dry run.
    output: Option<String>,
    page_size: u64,
    /// `code` if the code and what lies behind it moved, `all` if everything did, `none` if no address did.
    separated: &'static str,
    /// Why the code could not move alone, or why nothing could.
    why_all: Option<String>,
    bytes_before: u64,
    bytes_after: u64,
    huge_bytes_before: u64,
    huge_bytes_after: u64,
    /// Memory of the page cache that huge pages take for padding, once a machine.
    padding_in_huge_bytes: u64,
    aslr_bits_lost: u32,
    /// Constants in huge pages of the code, which are executable now.
    constants_executable_bytes: u64,
    /// The debug information in a file of its own, with --debug.
    debug: Option<Written>,
    segments: Vec<Segment>,
    /// How far each part of the address space moved.
    moved: Vec<Part>,
}

#[derive(Serialize)]
struct Segment {
    prot: String,
    address_before: u64,
    address_after: u64,
    bytes: u64,
    huge_bytes_before: u64,
    huge_bytes_after: u64,
    padding_in_huge_bytes: u64,
}

#[derive(Serialize)]
struct Part {
    start: u64,
    end: u64,
    by: u64,
}

impl Summary {
    pub fn new(
        args: &AlignArgs,
        original: &Original,
        separated: &Separated,
        debug: Option<Written>,
    ) -> Summary {
        let sum = |of: fn(&Gain) -> u64| separated.gains.iter().map(of).sum();
        let segment = |g: &Gain| Segment {
            prot: g.prot.to_string(),
            address_before: g.address_before.0,
            address_after: g.address_after.0,
            bytes: g.bytes,
            huge_bytes_before: g.huge_before,
            huge_bytes_after: g.huge_after,
            padding_in_huge_bytes: g.cost(),
        };
        let part = |p: &hugelift_relink::separate::Part| Part { start: p.start, end: p.end, by: p.by };
        let (way, why_all) = match &separated.way {
            Way::Code => ("code", None),
            Way::All { why } => ("all", Some(why.to_string())),
            Way::Stay { why } => ("none", Some(why.to_string())),
        };
        Summary {
            version: 1,
            input: args.input.escaped().to_string(),
            output: args.output.as_ref().filter(|_| !args.dry_run).map(|o| o.escaped().to_string()),
            page_size: args.page_size.bytes(),
            separated: way,
            why_all,
            bytes_before: original.meta.size(),
            bytes_after: separated.bytes.len() as u64,
            huge_bytes_before: sum(|g| g.huge_before),
            huge_bytes_after: sum(|g| g.huge_after),
            padding_in_huge_bytes: sum(Gain::cost),
            aslr_bits_lost: separated.aslr_bits_lost,
            constants_executable_bytes: sum(|g| g.constants),
            debug,
            segments: separated.gains.iter().map(segment).collect(),
            moved: separated.distances.parts().iter().map(part).collect(),
        }
    }

    pub fn text(&self, original: &Original, separated: &Separated) -> String {
        let mut out = String::new();
        let name = self.output.as_ref().unwrap_or(&self.input);
        // Writing to a String cannot fail.
        let _ = write!(out, "{name}: {}, ", human_bytes(self.bytes_after));
        let _ = match &separated.way {
            Way::Code => writeln!(out, "its code and all behind it moved"),
            Way::All { why } => writeln!(out, "all of it moved, because its code cannot move alone: {why}"),
            Way::Stay { why } => writeln!(out, "its addresses stay: {why}"),
        };
        for gain in separated.gains.iter().filter(|g| g.huge_after > 0 || g.huge_before > 0) {
            let [content, huge, of, before, cost] =
                [gain.content(), gain.huge_after, gain.bytes, gain.huge_before, gain.cost()].map(human_bytes);
            let _ = write!(out, "  {} at {}: {content} of {of} on {huge}", gain.prot, gain.address_after);
            if gain.cost() > 0 {
                let _ = write!(out, ", +{cost} of memory, one copy a machine");
            }
            let _ = writeln!(out, "; without --separate {before}");
        }
        if let Some(Written { output: file, linked, .. }) = &self.debug {
            let how = if *linked { "which the copy names" } else { "which the copy does not name (gdb -s)" };
            let _ = writeln!(out, "  {file}: its debug information, {how}");
        }
        if original.build_id().is_some() {
            out.push_str("  its build-id is still that of the original, although its addresses differ\n");
        }
        if self.constants_executable_bytes > 0 {
            let bytes = human_bytes(self.constants_executable_bytes);
            let _ = writeln!(
                out,
                "  {bytes} of its constants share huge pages with code, and are executable now"
            );
        }
        if self.aslr_bits_lost > 0 {
            let _ = writeln!(out, "  its load address has {} random bits fewer", self.aslr_bits_lost);
        }
        out
    }
}
