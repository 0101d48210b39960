// SPDX-License-Identifier: Apache-2.0
//! `hugelift prime --replace --separate --dry-run`: what a set of files would gain and take.

use super::wanted::Item;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::printable::Untrusted;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_pages::pagecache::prime::CacheFile;
use hugelift_relink::replace::replaceable;
use hugelift_relink::separate::{Gain, Options, Separated};
use serde::Serialize;
use std::fmt::Write as _;
use std::ops::AddAssign;

/// What the files would gain and take, as JSON.
#[derive(Serialize)]
pub(super) struct Planned {
    version: u32,
    page_size: u64,
    files: Vec<File>,
    totals: Bytes,
}

#[derive(Serialize)]
struct File {
    path: Untrusted,
    /// Why it would not be separated.
    not_separated: Option<Why>,
    #[serde(flatten)]
    bytes: Bytes,
}

/// Why a file would not be separated.
#[derive(Serialize)]
#[serde(untagged)]
enum Why {
    /// The reason alone.
    Reason(String),
    /// A sentence that names the file.
    Sentence(String),
}

/// Bytes of read-only segments.
#[derive(Serialize, Clone, Copy, Default)]
struct Bytes {
    /// In huge pages, as `prime --replace` without `--separate` would lay the file out.
    huge_bytes_before: u64,
    /// In huge pages of the separated file, padding included.
    huge_bytes_after: u64,
    /// Memory of the page cache that these huge pages take for padding, once a machine.
    padding_in_huge_bytes: u64,
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.huge_bytes_before += other.huge_bytes_before;
        self.huge_bytes_after += other.huge_bytes_after;
        self.padding_in_huge_bytes += other.padding_in_huge_bytes;
    }
}

impl Bytes {
    fn of(separated: &Separated) -> Bytes {
        let sum = |of: fn(&Gain) -> u64| separated.gains.iter().filter(|g| !g.prot.write).map(of).sum();
        Bytes {
            huge_bytes_before: sum(|gain| gain.huge_before),
            huge_bytes_after: sum(|gain| gain.huge_after),
            padding_in_huge_bytes: sum(Gain::cost),
        }
    }

    fn text(self) -> String {
        let content = self.huge_bytes_after - self.padding_in_huge_bytes;
        let [content, after, cost, before] =
            [content, self.huge_bytes_after, self.padding_in_huge_bytes, self.huge_bytes_before]
                .map(human_bytes);
        format!("{content} on {after}, +{cost} of memory; without --separate {before}")
    }
}

impl Planned {
    /// Separates and proves the files, and writes nothing.
    pub(super) fn new(items: Vec<Item>, page: PageSize) -> Planned {
        let files: Vec<File> = items.into_iter().map(|item| File::new(item, page)).collect();
        let mut totals = Bytes::default();
        files.iter().for_each(|file| totals += file.bytes);
        Planned { version: 1, page_size: page.bytes(), files, totals }
    }

    /// Returns a line for each file, and one for all together.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut separated = 0;
        for file in &self.files {
            // Writing to a String cannot fail.
            let _ = match &file.not_separated {
                Some(Why::Reason(why)) => writeln!(out, "{}: not separated: {why}", file.path),
                Some(Why::Sentence(why)) => writeln!(out, "not separated: {why}"),
                None => writeln!(out, "{}: {}", file.path, file.bytes.text()),
            };
            separated += u32::from(file.not_separated.is_none());
        }
        let _ = writeln!(
            out,
            "{separated} of {} files: {}; one copy a machine",
            self.files.len(),
            self.totals.text()
        );
        out
    }
}

impl File {
    fn new(item: Item, page: PageSize) -> File {
        let no = |path: Untrusted, why| File { path, not_separated: Some(why), bytes: Bytes::default() };
        match item {
            Item::Unreadable(report) => no(report.path, Why::Sentence(report.error.unwrap_or_default())),
            Item::File { file: CacheFile::Data(file), .. } => {
                no((&file.path).into(), Why::Reason("it is no code".into()))
            }
            Item::File { file: CacheFile::Code(file), foreign, .. } => {
                match foreign.map_or_else(|| separated(&file, page), |why| Err(Why::Reason(why))) {
                    Ok(separated) => {
                        File { path: (&file.path).into(), not_separated: None, bytes: Bytes::of(&separated) }
                    }
                    Err(why) => no((&file.path).into(), why),
                }
            }
        }
    }
}

/// Separates a file, if it would be replaced.
///
/// # Errors
/// The reason, in words.
fn separated(file: &ElfFile, page: PageSize) -> Result<Separated, Why> {
    let original = replaceable(file).map_err(|error| Why::Sentence(error.to_string()))?;
    original.separated(page, Options::usual(page)).map_err(|error| match error.not_separated() {
        Some((why, _)) => Why::Reason(why),
        None => Why::Sentence(error.to_string()),
    })
}
