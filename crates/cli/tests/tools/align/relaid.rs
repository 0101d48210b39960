// SPDX-License-Identifier: Apache-2.0
//! A file re-laid by the command, and checked without it.

use crate::align::cache::huge;
use crate::common::{HUGELIFT, find};
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_relink::align::verify;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A re-laid copy in its own directory.
pub struct Relaid {
    pub path: PathBuf,
    pub said: serde_json::Value,
    /// For pages of 2 MB: the bytes in whole huge pages, and how many of them the page cache maps huge.
    pub cached: (u64, u64),
    _dir: tempfile::TempDir,
}

/// Runs `hugelift align`.
pub fn align(input: &Path, output: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(HUGELIFT);
    command.arg("align").args(options).arg(input).arg("-o").arg(output);
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Re-lays `input`, and checks everything that can be checked without running the copy.
///
/// # Errors
/// The command refused; this is its message.
pub fn relaid(input: &Path, page: PageSize) -> Result<Relaid, String> {
    let dir = tempfile::Builder::new().prefix("align-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let dir = dir.expect("a temporary directory");
    let path = dir.path().join(input.file_name().expect("a name"));
    let size = page.bytes().to_string();
    let out = align(input, &path, &["--json", "--page-size", &size]);
    if !out.status.success() {
        assert!(!path.exists(), "{}: the command refused, but a copy exists", input.display());
        return Err(String::from_utf8_lossy(&out.stderr).trim_end().to_string());
    }
    let said = serde_json::from_slice(&out.stdout).expect("JSON");
    // This comes first: the checks below read the copy into the page cache.
    let cached = if page == PageSize::MB2 { huge(&path) } else { (0, 0) };
    let copy = Relaid { path, said, cached, _dir: dir };
    copy.check(input, page);
    Ok(copy)
}

impl Relaid {
    fn check(&self, input: &Path, page: PageSize) {
        let name = input.display();
        let [a, b] = [input, &self.path].map(|p| std::fs::read(p).expect("read"));
        verify(&a, &b).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (before, after) = (Headers::parse(&a).unwrap(), Headers::parse(&b).unwrap());
        let mut whole = 0;
        for (s, t) in before.segments.iter().zip(&after.segments) {
            assert_eq!((s.vaddr, s.filesz, s.memsz), (t.vaddr, t.filesz, t.memsz), "{name}");
            let bytes = |file: &[u8], at: u64| file[at as usize..][..s.filesz as usize].to_vec();
            // The first segment holds the program headers, which name the offsets.
            if s.offset > 0 && !(s.offset..s.offset + s.filesz).contains(&phoff(&a)) {
                assert!(bytes(&a, s.offset) == bytes(&b, t.offset), "{name}: segment at {:#x}", s.vaddr);
            }
            let (first, end) = (t.vaddr.next_multiple_of(page.bytes()), t.vaddr + t.filesz);
            if first + page.bytes() <= end {
                assert_eq!(t.offset % page.bytes(), t.vaddr % page.bytes(), "{name}: at {:#x}", t.vaddr);
                assert!(t.align >= page.bytes(), "{name}: at {:#x}: p_align", t.vaddr);
                whole += 1;
            }
        }
        assert!(whole > 0 || self.said["huge_bytes_after"].as_u64().is_some_and(|n| n > 0), "{name}");
        // Padding is a hole: each segment and table may use one block more, which 64 kB allow for.
        use std::os::unix::fs::MetadataExt;
        let used = |path: &Path| std::fs::metadata(path).expect("stat").blocks() * 512;
        let allowed = a.len() as u64 + 64 * 1024;
        assert!(used(&self.path) <= allowed, "{name}: {} blocks for {}", used(&self.path), a.len());
        let new: Vec<String> = complaints(&self.path).difference(&complaints(input)).cloned().collect();
        assert!(new.is_empty(), "{name}: readelf complains of the copy but not of the original: {new:?}");
    }
}

fn phoff(file: &[u8]) -> u64 {
    u64::from_le_bytes(file[32..40].try_into().expect("eight bytes"))
}

/// Returns what readelf(1) finds wrong with a file, without the numbers that a new layout changes.
fn complaints(path: &Path) -> BTreeSet<String> {
    let readelf = find("readelf").expect("readelf; it comes with the linker in binutils");
    let mut command = Command::new(readelf);
    // readelf lists every symbol on stdout; the complaints are on stderr and in its warnings.
    let out = command.arg("-aW").arg(path).env("LC_ALL", "C").output().expect("readelf");
    assert!(out.status.success(), "{command:?}");
    let words = |line: &str| line.replace(|c: char| c.is_ascii_hexdigit(), "");
    let name = path.display().to_string();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let shown = String::from_utf8_lossy(&out.stdout).into_owned();
    let warnings = shown.lines().filter(|l| l.contains("arning") || l.contains("<corrupt"));
    said.lines().chain(warnings).map(|l| words(&l.replace(&name, ""))).collect()
}
