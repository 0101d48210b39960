// SPDX-License-Identifier: Apache-2.0
//! The options of `hugelift align`.

use clap::Args;
use hugelift_core::addr::PageSize;
use hugelift_core::quantity;
use std::path::PathBuf;

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
    pub(super) input: PathBuf,

    /// The copy; it atomically replaces a file of this name
    #[arg(short, long, value_name = "OUT", required_unless_present = "dry_run")]
    pub(super) output: Option<PathBuf>,

    /// Size of the huge pages
    #[arg(long, value_name = "SIZE", default_value_t = PageSize::MB2, hide_default_value = true)]
    pub(super) page_size: PageSize,

    /// Move the code, and all that holds an address, so that huge pages hold all of it and no data
    ///
    /// The copy is written only if its bytes are proven to do what those of the file do. The file's loader then
    /// loads both in a sandbox, and their memory is compared; where that cannot be done, stderr says why, and the
    /// copy is written all the same. Constants that share a huge page with code become executable, where a linker put
    /// the code between constants and data. What is linked for fixed addresses gains no more than that. Debug information
    /// in a file of its own is moved with --debug; without that it stays right only in debuggers that compare the
    /// addresses of sections, as gdb does.
    #[arg(long)]
    pub(super) separate: bool,

    /// With --separate: code smaller than this is not worth a huge page; a quarter of one by default
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, requires = "separate")]
    pub(super) least: Option<u64>,

    /// With --separate: the debug information of IN, in a file of its own, whose addresses move too
    ///
    /// A folder is searched as gdb searches its debug-file-directory, by the build-id of IN: /usr/lib/debug.
    #[arg(long, value_name = "FILE|FOLDER", requires = "separate")]
    pub(super) debug: Option<PathBuf>,

    /// With --debug: the new debug information; OUT.debug by default
    ///
    /// In a folder it gets the name by which gdb finds it there (.build-id/…). OUT names the file
    /// (.gnu_debuglink) if IN names one.
    #[arg(long, value_name = "FILE|FOLDER", requires = "debug", requires = "output")]
    pub(super) debug_output: Option<PathBuf>,

    /// Print what would be done, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print JSON, version 1 of the schema
    #[arg(long)]
    pub(super) json: bool,
}
