// SPDX-License-Identifier: Apache-2.0
//! Runs `perf bench mem memcpy` for comparison. How much memory it has shows whether it writes its source,
//! since memory never written takes none.

use anyhow::{Context as _, Result, ensure};
use hugelift_core::printable::text_to_parse;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::child::Child;
use hugelift_measure::program::{Output, Program};
use std::process::Command;
use std::time::Duration;

/// How often it runs, with and without huge pages each.
const ROUNDS: usize = 3;

/// Results of perf's benchmark.
#[derive(Clone, PartialEq, Debug)]
pub struct PerfBench {
    /// Version, as in `perf version 6.1.187`.
    pub version: String,
    /// Size of a block in bytes.
    pub bytes: usize,
    /// Bytes per second with huge pages off, by run.
    pub off: Vec<f64>,
    /// Bytes per second with malloc(3) set to ask for huge pages, by run.
    pub on: Vec<f64>,
    /// The most memory that was seen in any run, in bytes.
    pub peak: u64,
}

impl PerfBench {
    /// Whether it writes its source before it measures: then it has memory for two blocks, not for one.
    pub fn writes_its_source(&self) -> bool {
        self.peak as f64 > 1.75 * self.bytes as f64
    }
}

/// Runs it with blocks of `bytes` bytes.
///
/// # Errors
/// perf is not installed, or does not have this benchmark.
pub fn run(bytes: usize) -> Result<PerfBench> {
    let version =
        Command::new("perf").arg("version").output().context("perf is not installed (linux-perf)")?;
    let version = text_to_parse(&version.stdout).trim().to_string();
    let mut bench = PerfBench { version, bytes, off: vec![], on: vec![], peak: 0 };
    for _ in 0..ROUNDS {
        for on in [false, true] {
            let (rate, peak) = once(bytes, on)?;
            if on { &mut bench.on } else { &mut bench.off }.push(rate);
            bench.peak = bench.peak.max(peak);
        }
    }
    Ok(bench)
}

/// Runs it once. Returns the bytes per second and the most memory seen.
fn once(bytes: usize, thp: bool) -> Result<(f64, u64)> {
    let size = format!("{}MB", bytes >> 20);
    // Enough repetitions to sample its memory while it copies.
    let loops = ((1 << 28) / bytes).max(4).to_string();
    let argv = ["perf", "bench", "-f", "simple", "mem", "memcpy", "-f", "default", "-s", &size, "-l", &loops];
    let mut program = Program::new(argv);
    let output = tempfile::NamedTempFile::new().context("a temporary file")?;
    program.output = Output::File(output.path().to_path_buf());
    program.no_thp = !thp;
    // malloc(3) maps large blocks, so no setting of the system is needed.
    if thp {
        program.env.push(("GLIBC_TUNABLES".into(), "glibc.malloc.hugetlb=1".into()));
    }
    let child = Child::start(&mut program.command()?)?;
    let mut peak = 0;
    while !child.has_ended()? {
        peak = peak.max(resident_peak(child.pid()).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    let (status, _) = child.finish()?;
    let text = std::fs::read_to_string(output.path()).context("cannot read perf's output")?;
    ensure!(status.success(), "{} ended with {status}: {}", argv.join(" "), text.trim());
    let rate =
        rate(&text).with_context(|| format!("{} printed no number: {}", argv.join(" "), text.trim()))?;
    Ok((rate, peak))
}

/// Parses the one line that is a number: bytes per second.
fn rate(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.trim().parse::<f64>().ok().filter(|rate| *rate > 0.0))
}

/// Reads `VmHWM` in bytes: the most memory that the program has had since its start.
fn resident_peak(pid: u32) -> Option<u64> {
    Process::new(pid).status().ok()?.peak_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_stands_alone_on_its_line() {
        let real = "# function 'default' (Default memcpy() provided by glibc)\n11281763320.199633\n";
        assert_eq!(rate(real), Some(11_281_763_320.199_633));
        for none in ["", "# 12\n", "nan\n", "-3\n", "inf MB"] {
            assert_eq!(rate(none), None, "{none}");
        }
    }

    #[test]
    fn two_blocks_in_memory_are_a_written_source() {
        let with = |peak| PerfBench { version: String::new(), bytes: 100, off: vec![], on: vec![], peak };
        assert!(with(205).writes_its_source());
        assert!(!with(105).writes_its_source());
    }
}
