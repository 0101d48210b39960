// SPDX-License-Identifier: Apache-2.0
//! Separates the ELF files of this machine: each must be proven, by its bytes and as its own loader loads it,
//! or refused with a reason. By default a sample; `HUGELIFT_CORPUS=all` takes them all.

use crate::common::level::rounds;
use hugelift_core::addr::PageSize;
use hugelift_relink::loaded::{Loaded, compare};
use hugelift_relink::separate::{self, Options, Way, proof};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How large a file of the sample may be.
const LARGEST: u64 = 8 << 20;

/// Returns the ELF files below `roots`, each once.
fn files(roots: &[PathBuf]) -> Vec<PathBuf> {
    use std::io::Read;
    let mut folders = roots.to_vec();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            // A link leads to a file that is found by its own name.
            let Ok(kind) = entry.file_type() else { continue };
            let mut magic = [0; 4];
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && std::fs::File::open(entry.path()).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
                && magic == *b"\x7fELF"
            {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// The first word of what a reason looks like in code: its kind.
fn kind(reason: &impl std::fmt::Debug) -> String {
    let text = format!("{reason:?}");
    let name =
        |text: &str| text.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_string();
    match text.split_once("why:") {
        Some((outer, inner)) => format!("{}, {}", name(outer), name(inner)),
        None => name(&text),
    }
}

/// Separates one file, and proves the copy. Returns the row of the table and the words for it.
///
/// # Errors
/// What is wrong with the copy.
fn try_one(file: &Path, dir: &Path) -> Result<(String, String), String> {
    let bytes = std::fs::read(file).map_err(|e| e.to_string())?;
    let separated = match separate::separate(&bytes, PageSize::MB2, Options { least: 1 }) {
        Ok(separated) => separated,
        Err(refusal) => return Ok((format!("refused: {}", kind(&refusal)), refusal.to_string())),
    };
    let way = match separated.way {
        Way::Code => "the code moves",
        Way::All { .. } => "everything moves",
        Way::Stay { .. } => "nothing moves",
    };
    let proof =
        proof::check(&bytes, &separated.bytes, &separated.distances).map_err(|flaw| flaw.to_string())?;
    let copy = dir.join(file.file_name().expect("a file has a name"));
    std::fs::write(&copy, &separated.bytes).expect("write a copy");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let loaded = compare(file, &std::fs::File::open(&copy).expect("open a copy"), &separated.distances);
    std::fs::remove_file(&copy).expect("remove a copy");
    match loaded {
        Ok(Loaded::Same(compared)) => {
            Ok((format!("proven and loaded: {way}"), format!("{proof:?} {compared:?}")))
        }
        Ok(Loaded::NotLoaded(why)) => {
            let known = ["another machine", "names no loader", "No such file", "Permission denied", "status"];
            let row = known.iter().find(|word| why.contains(*word)).unwrap_or(&"another reason");
            Ok((format!("proven, not loaded ({row}): {way}"), why))
        }
        Err(difference) => Err(difference.to_string()),
    }
}

#[test]
fn files_of_this_machine_are_proven_or_refused() {
    let all = std::env::var("HUGELIFT_CORPUS").is_ok_and(|v| v == "all");
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let mut files = files(&["/usr".into(), "/opt".into(), home.join(".rustup"), home.join(".cargo/bin")]);
    if !all {
        let small = |f: &PathBuf| std::fs::metadata(f).is_ok_and(|meta| meta.len() <= LARGEST);
        files = files.into_iter().step_by(rounds(240, 40)).filter(small).collect();
    }
    let (queue, table) = (Mutex::new(files.iter()), Mutex::new(BTreeMap::<String, (usize, String)>::new()));
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let dir = tempfile::tempdir_in("/tmp").expect("a temporary directory");
                // The loader runs as nobody.
                std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
                loop {
                    let Some(file) = queue.lock().expect("queue").next() else { break };
                    match try_one(file, dir.path()) {
                        Ok((row, words)) => {
                            let example = format!("{}: {words}", file.display());
                            table.lock().expect("table").entry(row).or_insert((0, example)).0 += 1;
                        }
                        Err(why) => wrong.lock().expect("list").push(format!("{}: {why}", file.display())),
                    }
                }
            });
        }
    });
    for (row, (count, example)) in &*table.lock().expect("table") {
        println!("{count:6}  {row}\n        {example}");
    }
    let wrong = wrong.into_inner().expect("list");
    assert!(wrong.is_empty(), "{} files: {wrong:#?}", wrong.len());
    let table = table.into_inner().expect("table");
    assert!(table.keys().any(|row| row.starts_with("proven and loaded")), "{table:#?}");
}
