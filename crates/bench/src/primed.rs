// SPDX-License-Identifier: Apache-2.0
//! Measures what priming brings: clang++ with its large shared objects in small pages of the page cache, as
//! after an installation, against the same objects in huge pages.
//!
//! Each side has its own copies, so that no file of the machine is dropped from the page cache or primed.

use crate::options::Options;
use crate::programs::{find_clang, hugelift};
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::PageSize;
use hugelift_measure::child::Cost;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use hugelift_pages::pagecache::prime::Locked;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const ROUNDS: usize = 100;
const GOAL: f64 = 0.95;
const SOURCE: &str = "#include <map>\n#include <string>\n#include <vector>\n\
    std::map<std::string, std::vector<int>> m;\nint f(const std::string &s) { return m[s].at(1); }\n";

/// Prints the ratio of CPU time, primed to not primed, of `clang++ --version` and of a compilation.
///
/// # Errors
/// A run or priming failed.
pub fn run(options: &Options) -> Result<()> {
    let Some(clang) = find_clang() else {
        println!("\nSKIP: no clang++ in PATH: ci/setup.sh test");
        return Ok(());
    };
    let dir = TempDir::new_in(std::env::current_exe()?.parent().context("own folder")?)?;
    let [small, primed] = ["small", "primed"].map(|name| dir.path().join(name));
    let libraries = large_libraries(&clang)?;
    copies(&libraries, &small)?;
    copies(&libraries, &primed)?;
    prime(&primed, false)?;
    let covered = [&small, &primed].map(|side| prime(side, true));
    let [small_huge, primed_huge] = covered;
    let ((small_huge, whole), (primed_huge, _)) = (small_huge?, primed_huge?);
    println!(
        "\nclang++, {} libraries; of {} MB in whole huge pages {} are huge, primed {}",
        libraries.len(),
        whole >> 20,
        small_huge >> 20,
        primed_huge >> 20
    );
    let source = dir.path().join("x.cpp");
    std::fs::write(&source, SOURCE)?;
    let source = source.to_string_lossy().into_owned();
    for (what, args) in
        [("--version", vec!["--version"]), ("-O1 -c", vec!["-O1", "-c", "-o", "/dev/null", &source])]
    {
        let side = |folder: &Path| {
            let mut program = args.iter().fold(Program::new([&clang]), |program, arg| program.arg(arg));
            program.env.push(("LD_LIBRARY_PATH".into(), folder.into()));
            program
        };
        let (small, primed) = (side(&small), side(&primed));
        let mut sides =
            [Side::new("small", || Ok(small.run()?.cost)), Side::new("primed", || Ok(primed.run()?.cost))];
        let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
        let ratio = |figure: fn(&Cost) -> f64| stats::ratio(&pairs(&results[0], &results[1], figure));
        let cpu: Vec<f64> = results[0].iter().map(Cost::cpu).collect();
        println!(
            "  {what:<10} {:>6.1} ms  CPU time {:.2}, wall time {:.2}{}",
            stats::median(&cpu)? * 1e3,
            ratio(Cost::cpu)?,
            ratio(|c| c.wall)?,
            if what == "--version" { format!("  goal: at most {GOAL}") } else { String::new() }
        );
    }
    let (after, _) = prime(&small, true)?;
    ensure!(after <= small_huge, "the small side has become huge: {} MB", after >> 20);
    Ok(())
}

/// Copies files to the new folder `to`, where no process uses them.
///
/// # Errors
/// A file cannot be read or written.
pub fn copies(files: &[PathBuf], to: &Path) -> Result<()> {
    std::fs::create_dir(to).with_context(|| to.display().to_string())?;
    for file in files {
        let copy = to.join(file.file_name().context("a file without a name")?);
        std::fs::copy(file, &copy).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Returns the shared objects of the program that have whole huge pages.
///
/// # Errors
/// `hugelift prime --check` failed.
pub fn large_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let report =
        report(Command::new(hugelift()?).args(["prime", "--json", "--check", "--with-libs"]).arg(program))?;
    let files = report["files"].as_array().context("no files in the report")?.iter();
    let large = files.filter(|f| f["whole_bytes"] != 0).filter_map(|f| f["path"].as_str());
    Ok(large.map(PathBuf::from).filter(|p| p.to_string_lossy().contains(".so")).collect())
}

/// Primes, or only checks, all files in a folder. Returns the bytes that are huge and the bytes that could be.
///
/// # Errors
/// `hugelift prime` failed.
pub fn prime(folder: &Path, check: bool) -> Result<(u64, u64)> {
    let mut command = Command::new(hugelift()?);
    command.args(["prime", "--json"]).args(check.then_some("--check"));
    for entry in std::fs::read_dir(folder)? {
        command.arg(entry?.path());
    }
    let report = report(&mut command)?;
    let files = report["files"].as_array().context("no files in the report")?;
    let sum = |key: &str| files.iter().filter_map(|f| f[key].as_u64()).sum::<u64>();
    Ok((sum("huge_bytes"), sum("whole_bytes")))
}

/// Locks the files of a folder in memory, as `hugelift service` does: some machines evict pages that were not used
/// for a minute. Prints a line if that is not allowed.
///
/// # Errors
/// The files cannot be read.
pub fn hold(folder: &Path) -> Result<Vec<Locked>> {
    let page = PageSize::MB2;
    let mut held = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let offsets: Vec<u64> =
            (0..file.metadata()?.len() / page.bytes()).map(|n| n * page.bytes()).collect();
        let (locked, failed) = Locked::new(&file, &offsets, page);
        held.push(locked);
        if let Some(error) = failed {
            println!("(not locked in memory: mlock of {}: {error}; ulimit -l unlimited)", path.display());
            break;
        }
    }
    Ok(held)
}

fn report(command: &mut Command) -> Result<Value> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    serde_json::from_slice(&out.stdout)
        .with_context(|| format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr)))
}
