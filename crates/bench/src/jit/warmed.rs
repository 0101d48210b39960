// SPDX-License-Identifier: Apache-2.0
//! A run of a program that warms up before it works. It prints `ready`, waits for a line, works, prints a sum, and waits for the
//! end of its standard input.

use crate::hot::children_cpu;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::smaps::Usage;
use hugelift_linux::proc::clock::cpu_time;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::program::Program;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a compiler may go on in the background after the warm-up.
const PATIENCE: Duration = Duration::from_secs(20);
/// A program rests that uses less than a hundredth of a CPU for so long. The JVM and Erlang have threads that wake up now and
/// then.
const REST: Duration = Duration::from_millis(300);

/// What a run has shown.
pub struct Worked {
    /// CPU seconds of the work alone, of all threads.
    pub cpu: f64,
    /// What it has computed.
    pub output: String,
    /// The code that it has made, when the work begins.
    pub begin: Code,
    /// The same when the work has ended.
    pub end: Code,
    /// CPU seconds that the attach took, of hugelift and in the program.
    pub attach: Option<f64>,
}

/// Code that a program has made.
pub struct Code {
    /// What of it is in memory.
    pub bytes: u64,
    /// What of it huge pages map.
    pub huge: u64,
}

impl Code {
    /// Adds up the mappings that hold such code: those that can be executed and show no file that still exists. PHP maps
    /// /dev/zero, Erlang an unlinked file.
    fn of(memory: &[Usage]) -> Code {
        let made = memory.iter().filter(|usage| {
            let mapping = &usage.mapping;
            mapping.prot.exec && !mapping.is_kernel_code() && (!mapping.is_file() || mapping.deleted)
        });
        made.fold(Code { bytes: 0, huge: 0 }, |sum, usage| Code {
            // Rss leaves out pages of a pool.
            bytes: sum.bytes + usage.rss + usage.hugetlb(),
            huge: sum.huge + usage.huge(),
        })
    }
}

/// Runs a program to its end. With `parts`, hugelift attaches to it between the warm-up and the work.
///
/// # Errors
/// The program or hugelift fails, or the program does not come to rest.
pub fn run(program: &Program, parts: Option<&str>) -> Result<Worked> {
    let mut command = program.command()?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Child::start(&mut command)?;
    let pid = child.pid();
    let streams = child.streams();
    let mut stdin = streams.stdin.take().context("no pipe")?;
    let mut stdout = BufReader::new(streams.stdout.take().context("no pipe")?);
    let ready = line(&mut stdout)?;
    ensure!(ready == "ready", "{program}: it printed '{ready}' before it was ready");
    rest(pid)?;
    let attach = parts.map(|parts| attach(pid, parts)).transpose()?;
    let memory = || -> Result<Code> { Ok(Code::of(&Process::new(pid).smaps()?)) };
    let (begin, before) = (memory()?, cpu_time(pid)?);
    writeln!(stdin).context("standard input")?;
    let output = line(&mut stdout)?;
    let cpu = (cpu_time(pid)? - before).as_secs_f64();
    let end = memory()?;
    drop(stdin);
    let (status, _) = child.finish()?;
    interrupt::check()?;
    ensure!(status.success() && !output.is_empty(), "{program}: {status}, printed '{output}'");
    Ok(Worked { cpu, output, begin, end, attach })
}

fn line(from: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    from.read_line(&mut line).context("standard output")?;
    Ok(line.trim().into())
}

/// Waits until a process uses next to no CPU time.
fn rest(pid: u32) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        interrupt::check()?;
        let (before, since) = (cpu_time(pid)?, Instant::now());
        std::thread::sleep(REST);
        if cpu_time(pid)? - before < since.elapsed() / 100 {
            return Ok(());
        }
    }
    bail!("process {pid} is still busy {PATIENCE:?} after its warm-up")
}

/// Lifts parts of a process. Returns the CPU seconds that this took.
fn attach(pid: u32, parts: &str) -> Result<f64> {
    let before = cpu_time(pid)?;
    let mut command = Command::new(hugelift()?);
    command.args(["attach", "--json", "--parts", parts]).arg(pid.to_string());
    let (children, out) = (children_cpu()?, command.output().context("hugelift attach")?);
    ensure!(out.status.success(), "hugelift attach: {}", String::from_utf8_lossy(&out.stderr));
    Ok((cpu_time(pid)? - before).as_secs_f64() + children_cpu()? - children)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::smaps::parse_smaps;

    #[test]
    fn code_is_what_can_be_executed_and_lies_in_no_file() {
        let made = b"\
10000000-10800000 rwxp 00000000 00:00 0
Rss:                6144 kB
AnonHugePages:      4096 kB
20000000-20400000 r-xs 08000000 00:01 132511                             /dev/zero (deleted)
Rss:                4096 kB
ShmemPmdMapped:     2048 kB
";
        let other = b"\
30000000-30800000 r-xp 00000000 fe:00 131                                /usr/bin/node
Rss:                8192 kB
FilePmdMapped:      8192 kB
40000000-40800000 rw-p 00000000 00:00 0
Rss:                8192 kB
AnonHugePages:      8192 kB
50000000-50002000 r-xp 00000000 00:00 0                                  [vdso]
Rss:                   4 kB
";
        let code = Code::of(&parse_smaps(&[&made[..], other].concat()).unwrap());
        assert_eq!((code.bytes, code.huge), (10 << 20, 6 << 20));
    }
}
