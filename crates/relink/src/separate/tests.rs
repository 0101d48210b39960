// SPDX-License-Identifier: Apache-2.0
//! Separates the ELF files of this machine. Each is refused with a reason, or passes the proof.

use super::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders whose files are separated, or those in this variable, separated by colons.
const FOLDERS: (&str, &str) =
    ("HUGELIFT_SEPARATE", "/usr/bin:/usr/sbin:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu");

/// The most files that a usual run separates; all of the folders in the variable.
const MOST: usize = 120;

/// The most bytes of a file in a usual run: a test program decodes some 30 MB a second.
const LARGEST: u64 = 12 << 20;

/// Returns the ELF files below some folders.
fn files(folders: &str, largest: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo: Vec<PathBuf> = folders.split(':').map(Into::into).collect();
    while let Some(path) = todo.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        } else if meta.is_file() && meta.len() <= largest && is_elf(&path) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

/// Returns what became of a file, in words without its numbers.
fn outcome(path: &Path, bytes: &[u8], page: PageSize) -> String {
    let separated = match separate(bytes, page, Options { least: 1 }) {
        Ok(separated) => separated,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    if let Err(flaw) = proof::check(bytes, &separated.bytes, &separated.distances) {
        return format!("FLAW {}: {flaw}", path.display());
    }
    let code = separated.gains.iter().filter(|g| g.prot.exec);
    for gain in code.filter(|_| separated.way == Way::Code) {
        assert!(gain.content() == gain.bytes, "{}: {gain:?}", path.display());
    }
    // A second run has nothing left to do.
    if separated.way == Way::Code {
        let again = separate(&separated.bytes, page, Options { least: 1 });
        assert!(again.is_err_and(|why| why.gains_nothing()), "{}", path.display());
    }
    match &separated.way {
        Way::Code => "separated".into(),
        Way::All { why } => format!("separated as a whole: {why}"),
        Way::Stay { why } => format!("separated where it is: {why}"),
    }
}

/// With all that it needs, a file of each folder is separated and proven, or refused.
#[test]
fn the_files_of_this_machine() {
    let given = std::env::var(FOLDERS.0).ok();
    let largest = if given.is_some() { u64::MAX } else { LARGEST };
    let mut all = files(given.as_deref().unwrap_or(FOLDERS.1), largest);
    let most = if given.is_some() { usize::MAX } else { MOST };
    // The same files each time, from all folders.
    let step = all.len().div_ceil(most).max(1);
    all = all.into_iter().step_by(step).collect();
    let mut counts = BTreeMap::<String, (usize, PathBuf)>::new();
    for path in &all {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let words: String = outcome(path, &bytes, PageSize::MB2)
            .split_whitespace()
            .map(|word| {
                if word.contains(|c: char| c.is_ascii_digit()) { "N " } else { word }.to_string() + " "
            })
            .collect();
        counts.entry(words.replace("N  ", "N ")).or_insert((0, path.clone())).0 += 1;
    }
    for (words, (n, example)) in &counts {
        println!("{n:5} {words} (such as {})", example.display());
    }
    assert!(!counts.keys().any(|words| words.starts_with("FLAW")), "a file does not pass the proof");
    let separated: usize =
        counts.iter().filter(|(words, _)| words.starts_with("separated")).map(|(_, c)| c.0).sum();
    if all.len() > 100 {
        assert!(separated > all.len() / 2, "{separated} of {}", all.len());
    } else {
        println!("SKIP: only {} ELF files on this machine", all.len());
    }
}

/// Damaged files are refused, or are proven; nothing panics, and nothing grows without bound.
#[test]
fn damaged_files() {
    let mut small = files("/usr/bin:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu", 60_000);
    small.truncate(10);
    if small.is_empty() {
        return println!("SKIP: no small ELF file on this machine");
    }
    let mut random = fastrand::Rng::with_seed(18);
    let (mut refused, mut separated) = (0, 0);
    for path in small {
        let bytes = std::fs::read(&path).expect("read");
        for _ in 0..100 {
            let mut bad = bytes.clone();
            for _ in 0..random.usize(1..6) {
                // Half of the damage goes to the headers and tables at the start.
                let end = if random.bool() { bad.len() } else { bad.len().min(4096) };
                let at = random.usize(0..end);
                bad[at] = match random.u8(0..4) {
                    0 => 0,
                    1 => 0xff,
                    2 => bad[at] ^ 1 << random.u8(0..8),
                    _ => random.u8(..),
                };
            }
            if random.u8(0..20) == 0 {
                bad.truncate(random.usize(0..bad.len()));
            }
            match separate(&bad, PageSize::MB2, Options { least: 1 }) {
                Ok(done) => {
                    separated += 1;
                    assert!(done.bytes.len() < bad.len() + (64 << 20), "{}", path.display());
                    // What is wrong in the input may be wrong in the copy; it must not panic.
                    let _ = proof::check(&bad, &done.bytes, &done.distances);
                }
                Err(refusal) => {
                    refused += 1;
                    assert!(!refusal.to_string().is_empty());
                }
            }
        }
    }
    println!("{refused} refused, {separated} separated");
    assert!(refused > 100 && separated > 100);
}
