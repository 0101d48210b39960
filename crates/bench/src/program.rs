// SPDX-License-Identifier: Apache-2.0
//! The generated programs: made once with `cc`, then kept under the target directory.

use crate::child::{Program, Sample};
use crate::coverage::{self, Coverage};
use crate::host;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::Addr;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

const JUMPS: (&str, &str) = ("jumps.c", include_str!("../programs/jumps.c"));
const CODE: (&str, &str) = ("code.S", include_str!("../programs/code.S"));
const PRELOAD: (&str, &str) = ("preload.c", include_str!("../programs/preload.c"));

/// Bytes from one generated function to the next: two cache lines.
const STRIDE: u64 = 128;

/// How the program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linking {
    /// Dynamic, position-independent: what compilers make when nothing is asked.
    Dynamic,
    /// Static, at a fixed address.
    Static,
    /// Static, position-independent.
    StaticPie,
}

/// The program that jumps at random through so many MB of code.
///
/// # Errors
/// The compiler is missing or fails.
pub fn jumps(megabytes: u64, linking: Linking) -> Result<PathBuf> {
    let (name, flags): (_, &[&str]) = match linking {
        Linking::Dynamic => ("dynamic", &["-fPIE", "-pie"]),
        Linking::Static => ("static", &["-fno-pie", "-no-pie", "-static"]),
        Linking::StaticPie => ("static-pie", &["-fPIE", "-static-pie"]),
    };
    let count = (megabytes << 20) / STRIDE;
    let mut args = vec![format!("-DCOUNT={count}"), format!("-DSTRIDE={STRIDE}")];
    args.extend(flags.iter().map(|flag| flag.to_string()));
    compile(&format!("jumps-{megabytes}-{name}"), &[JUMPS, CODE], &args)
}

/// The library that copies the executable's text to huge pages when preloaded.
///
/// # Errors
/// The compiler is missing or fails.
pub fn preload() -> Result<PathBuf> {
    let huge = format!("-DHUGE_BYTES={}", host::huge_page_bytes());
    compile("preload.so", &[PRELOAD], &["-shared".into(), "-fPIC".into(), huge])
}

/// The number of calls that keeps `program` busy for about `seconds`.
///
/// # Errors
/// It does not run.
pub fn calls_for(program: &Path, seconds: f64) -> Result<u64> {
    const TRIAL: u64 = 2_000_000;
    let cost = |calls: u64| Ok::<_, anyhow::Error>(run_of(program, calls).run()?.cpu);
    // What it costs without the calls, faulting its pages in included, is not theirs.
    let (few, many) = (cost(TRIAL)?, cost(2 * TRIAL)?);
    let each = ((many - few) / TRIAL as f64).max(1e-9);
    Ok((seconds / each) as u64)
}

/// `program` with so many calls to make.
pub fn run_of(program: &Path, calls: u64) -> Program {
    Program::new([program.into(), std::ffi::OsString::from(calls.to_string())])
}

/// How much of the generated program's text was on huge pages when it was looked at.
///
/// # Errors
/// It did not print where its code is.
pub fn coverage_of(sample: &Sample) -> Result<Coverage> {
    let addr = sample.output.rsplit(" at ").next().and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let addr = addr.with_context(|| format!("no address in the program's output '{}'", sample.output))?;
    Ok(coverage::of_text_at(&sample.memory, Addr(addr)))
}

/// What the generated program computed (as against where it lay).
pub fn result_of(sample: &Sample) -> &str {
    sample.output.split(" at ").next().unwrap_or_default()
}

fn compile(name: &str, sources: &[(&str, &str)], args: &[String]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (sources, args).hash(&mut hasher);
    let dir = directory()?;
    let made = dir.join(format!("{name}-{:016x}", hasher.finish()));
    if made.is_file() {
        return Ok(made);
    }
    let scratch = tempfile::tempdir_in(&dir).with_context(|| format!("cannot write to {}", dir.display()))?;
    let mut command = Command::new("cc");
    command.current_dir(scratch.path()).args(["-O2", "-o", "made"]).args(args);
    for (file, text) in sources {
        fs::write(scratch.path().join(file), text)?;
        command.arg(file);
    }
    let status = command.status().context("cannot start cc: ci/setup.sh build")?;
    ensure!(
        status.success(),
        "cc could not make {name} ({status}); is libc6-dev installed? ci/setup.sh build"
    );
    let written = scratch.path().join("made");
    // Its pages would otherwise stay dirty, and reach the disk in the midst of a run.
    fs::File::open(&written)?.sync_all()?;
    fs::rename(written, &made)?;
    Ok(made)
}

/// `bench-programs` in the target directory, which is the folder above this executable's.
fn directory() -> Result<PathBuf> {
    let own = std::env::current_exe().context("own path")?;
    let target = own.ancestors().nth(2).context("no folder above this executable")?;
    let dir = target.join("bench-programs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
