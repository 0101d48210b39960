// SPDX-License-Identifier: Apache-2.0
//! `hugelift align`: copies an ELF file so that the page cache can hold its code in huge pages.

mod debug;
mod separated;

use crate::FAILED;
use crate::failure::{Exit, Failure};
use crate::output;
use clap::Args;
use debug::DebugInfo;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::align::{Layout, Placed, Refusal};
use hugelift_core::printable::Escape;
use hugelift_core::quantity;
use hugelift_core::separate::Options;
use hugelift_os::io::console::{self, say};
use hugelift_os::io::entry::Entry;
use hugelift_os::io::temporary::Temporary;
use hugelift_os::pagecache::relay::{Original, RelayError, publish, set_mode};
use hugelift_os::separate::loaded::Loaded;
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Exit status where no copy is made because it would gain nothing.
const NOTHING: i32 = 1;

/// Copy a program or shared object so that its code can be on huge pages of the page cache
///
/// The copy has the same addresses and the same bytes. Padding moves its segments to other offsets
/// in the file, as the linker option -z max-page-size=2M would have. Where no segment holds a whole
/// huge page, no copy is made, and the exit status is 1.
///
/// With --separate the addresses of the copy change too, so that all of its code lies in huge pages,
/// which no data share.
#[derive(Args, Debug)]
pub struct AlignArgs {
    /// The program or shared object, by its path
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The copy; it atomically replaces a file of this name
    #[arg(short, long, value_name = "OUT", required_unless_present = "dry_run")]
    output: Option<PathBuf>,

    /// Size of the huge pages
    #[arg(long, value_name = "SIZE", default_value_t = PageSize::MB2, hide_default_value = true)]
    page_size: PageSize,

    /// Move the code, and all that holds an address, so that huge pages hold all of it and no data
    ///
    /// The copy is written only if its bytes are proven to do what those of the file do. The file's loader then
    /// loads both in a sandbox, and their memory is compared; where that cannot be done, stderr says why, and the
    /// copy is written all the same. Constants that share a huge page with code become executable, where a linker put
    /// the code between constants and data. What is linked for fixed addresses gains no more than that. Debug information
    /// in a file of its own is moved with --debug; without that it stays right only in debuggers that compare the
    /// addresses of sections, as gdb does.
    #[arg(long)]
    separate: bool,

    /// With --separate: code smaller than this is not worth a huge page; a quarter of one by default
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, requires = "separate")]
    least: Option<u64>,

    /// With --separate: the debug information of IN, in a file of its own, whose addresses move too
    ///
    /// A folder is searched as gdb searches its debug-file-directory, by the build-id of IN: /usr/lib/debug.
    #[arg(long, value_name = "FILE|FOLDER", requires = "separate")]
    debug: Option<PathBuf>,

    /// With --debug: the new debug information; OUT.debug by default
    ///
    /// In a folder it gets the name by which gdb finds it there (.build-id/…). OUT names the file
    /// (.gnu_debuglink) if IN names one.
    #[arg(long, value_name = "FILE|FOLDER", requires = "debug", requires = "output")]
    debug_output: Option<PathBuf>,

    /// Print what would be done, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    json: bool,
}

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
        let (copy, compared) = original.separated_beside(&separated, place)?;
        if let Loaded::NotLoaded(why) = compared {
            say(&format!("{}: the loaded copy was not compared: {why}", args.input.escaped()));
        }
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

/// Opens the folder of the output, and checks that the output is not the input and may be replaced.
fn check_output(original: &Original, output: &Path) -> Result<Entry, Failure> {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| RelayError::Io { action: "make a file in", path: folder.into(), source };
    let place = Entry::find(output).map_err(failed)?;
    // If the name cannot be looked at, writing the file gives the error.
    let Ok(there) = place.stat() else { return Ok(place) };
    let name = output.escaped().to_string();
    if place.is(&original.meta) {
        return Err(
            format!("{name} is the file itself; to replace it: hugelift prime --replace {name}").into()
        );
    }
    if there.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(format!("{name} is not a regular file, and is not replaced").into());
    }
    Ok(place)
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
