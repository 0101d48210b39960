// SPDX-License-Identifier: Apache-2.0
//! The generated programs: compiled once by `cc`, then kept in the target directory.

use crate::coverage;
use crate::host;
use crate::memory::Coverage;
use crate::program::Program;
use crate::sample::Sample;
use anyhow::{Context as _, Result, ensure};
use hugelift_core::addr::Addr;
use hugelift_core::printable::Escape;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const JUMPS: (&str, &str) = ("jumps.c", include_str!("../programs/jumps.c"));
const CODE: (&str, &str) = ("code.S", include_str!("../programs/code.S"));
const PRELOAD: (&str, &str) = ("preload.c", include_str!("../programs/preload.c"));

/// Bytes from one generated function to the next: two cache lines.
const STRIDE: u64 = 128;

/// Which functions the program calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hot {
    /// One function of each page: the hot functions of a large program lie scattered among cold
    /// ones, so that the TLB misses much more often than the caches.
    OneAPage,
    /// All of them: the caches miss as often as the TLB.
    All,
}

impl Hot {
    /// Returns the distance between the called functions, in functions.
    fn distance(self) -> u64 {
        match self {
            // One more than fit on a page. Otherwise all of them would share a few cache sets.
            Hot::OneAPage => 4096 / STRIDE + 1,
            Hot::All => 1,
        }
    }
}

/// How the program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linking {
    /// Dynamic, position-independent: the default of compilers.
    Dynamic,
    /// Static, at a fixed address.
    Static,
    /// Static, position-independent.
    StaticPie,
}

/// Makes the program that jumps at random through this many MB of code.
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
    small_in_page_cache(&compile(&format!("jumps-{megabytes}-{name}"), &[JUMPS, CODE], &args)?)
}

/// Makes the library that copies the executable's text to huge pages when preloaded.
///
/// # Errors
/// The compiler is missing or fails.
pub fn preload() -> Result<PathBuf> {
    let huge = format!("-DHUGE_BYTES={}", host::huge_page_bytes());
    compile("preload.so", &[PRELOAD], &["-shared".into(), "-fPIC".into(), huge])
}

/// Returns `program` with the number of calls that takes it about `seconds`.
///
/// # Errors
/// The program does not run.
pub fn run_for(program: &Path, hot: Hot, seconds: f64) -> Result<Program> {
    const TRIAL: u64 = 2_000_000;
    let cost = |calls: u64| Ok::<_, anyhow::Error>(run_of(program, hot, calls).run()?.cost.cpu());
    // The difference leaves out the cost without calls, such as that of page faults.
    let (few, many) = (cost(TRIAL)?, cost(2 * TRIAL)?);
    let each = ((many - few) / TRIAL as f64).max(1e-9);
    Ok(run_of(program, hot, (seconds / each) as u64))
}

/// Returns `program` with this number of calls.
pub fn run_of(program: &Path, hot: Hot, calls: u64) -> Program {
    Program::new([program]).arg(&calls.to_string()).arg(&hot.distance().to_string())
}

/// Returns how much of the generated program's text was on huge pages when its memory was read.
///
/// # Errors
/// The program did not print where its code is.
pub fn coverage_of(sample: &Sample) -> Result<Coverage> {
    let addr = sample.output.rsplit(" at ").next().and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let addr = addr.with_context(|| format!("no address in the program's output '{}'", sample.output))?;
    Ok(coverage::of_text_at(&sample.memory, Addr(addr)))
}

/// Returns what the generated program computed, without the address of its code.
pub fn result_of(sample: &Sample) -> &str {
    sample.output.split(" at ").next().unwrap_or_default()
}

/// Makes a copy whose pages in the page cache are small, as those of a file that a package manager
/// has just installed: the size of the writes decides. If they were large, the kernel would map
/// aligned text by huge entries in the bare program too.
fn small_in_page_cache(made: &Path) -> Result<PathBuf> {
    let bytes = fs::read(made).with_context(|| format!("cannot read {}", made.escaped()))?;
    let mut copy = tempfile::NamedTempFile::new_in(directory()?)?;
    for page in bytes.chunks(4096) {
        copy.write_all(page)?;
    }
    copy.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    // Otherwise dirty pages would be written back during a run.
    copy.as_file().sync_all()?;
    let path = made.with_extension("fresh");
    copy.persist(&path).with_context(|| format!("cannot write {}", path.escaped()))?;
    Ok(path)
}

fn compile(name: &str, sources: &[(&str, &str)], args: &[String]) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (sources, args).hash(&mut hasher);
    let dir = directory()?;
    let made = dir.join(format!("{name}-{:016x}", hasher.finish()));
    if made.is_file() {
        return Ok(made);
    }
    let scratch = tempfile::tempdir_in(&dir).with_context(|| format!("cannot write to {}", dir.escaped()))?;
    let mut command = Command::new("cc");
    command.current_dir(scratch.path()).args(["-O2", "-o", "made"]).args(args);
    for (file, text) in sources {
        fs::write(scratch.path().join(file), text)?;
        command.arg(file);
    }
    let status =
        command.status().context("cannot start cc: install a C compiler, as ci/setup.sh build does")?;
    ensure!(
        status.success(),
        "cc could not compile {name} ({status}): install libc6-dev, as ci/setup.sh build does"
    );
    fs::rename(scratch.path().join("made"), &made)?;
    Ok(made)
}

/// Returns `bench-programs` in the target directory: two folders above this executable.
fn directory() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot read /proc/self/exe")?;
    let target = own.ancestors().nth(2).context("this executable is not in a target directory")?;
    let dir = target.join("bench-programs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.escaped()))?;
    Ok(dir)
}
