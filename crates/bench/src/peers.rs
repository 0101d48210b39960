// SPDX-License-Identifier: Apache-2.0
//! Compares entering and exiting with the epoch crate to two C libraries for the same purpose:
//! ConcurrencyKit's `ck_epoch`, on which FreeBSD's epoch(9) is built, and userspace RCU's `urcu-memb`.
//! (`hugelift lab reclaim` compares it to crossbeam-epoch and seize; C libraries would have to be linked
//! with hugelift.)

use crate::options::Options;
use anyhow::{Context as _, Result, ensure};
use hugelift_epoch::{Contract, Domain, Donated, Epochs};
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 100;
/// Sections in one timed batch, which takes some tenths of a millisecond.
const SECTIONS: u32 = 100_000;
const SOURCE: &str = include_str!("peers/section.c");
/// Name, macro in the C program, header, library, and Debian package.
const PEERS: [[&str; 5]; 2] = [
    ["ck_epoch", "PEER_CK", "ck_epoch.h", "ck", "libck-dev"],
    ["urcu-memb", "PEER_URCU", "urcu/urcu-memb.h", "urcu-memb", "liburcu-dev"],
];

/// Prints nanoseconds, and ratios from interleaved pairs.
///
/// # Errors
/// There is no C compiler, or a compiled program failed.
pub fn run(options: &Options) -> Result<()> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    println!("\nentering and exiting, one task alone, ns; {rounds} rounds");
    let dir = tempfile::tempdir()?;
    for [name, define, header, library, package] in PEERS {
        if !has(header)? {
            println!("  SKIP: {name}: cc finds no {header} (apt-get install {package})");
            continue;
        }
        let program = dir.path().join(name);
        compile(&program, define, library)?;
        let peer = RefCell::new(Peer::start(&program)?);
        let mut sides = [
            Side::new(name, || peer.borrow_mut().nanoseconds()),
            Side::new("epochs", nanoseconds::<Epochs>),
            Side::new("list", nanoseconds::<Donated>),
        ];
        let results = rounds::run(&mut sides, rounds, |_, _, _| {})?;
        let median = |side: usize| stats::median(&results[side]);
        println!("  {name:<10} {:>5.2}", median(0)?);
        for side in [1, 2] {
            let ratio = stats::ratio(&pairs(&results[0], &results[side], |ns| *ns))?;
            println!("    {:<8} {:>5.2}  {ratio:.2} of that", sides[side].name, median(side)?);
        }
    }
    Ok(())
}

/// Measures an implementation of the epoch crate.
fn nanoseconds<C: Contract + 'static>() -> Result<f64> {
    let domain = Domain::<C>::new(4);
    let mut task = domain.join().context("the first of four tasks")?;
    let mut times = [0.0; 2];
    // The first batch is the warm-up.
    for time in &mut times {
        let began = Instant::now();
        for _ in 0..SECTIONS {
            drop(task.enter());
        }
        *time = began.elapsed().as_secs_f64() * 1e9 / f64::from(SECTIONS);
    }
    Ok(times[1])
}

fn has(header: &str) -> Result<bool> {
    let found = Command::new("cc")
        .args(["-E", "-include", header, "-x", "c", "/dev/null"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    Ok(found.context("cc")?.success())
}

fn compile(program: &Path, define: &str, library: &str) -> Result<()> {
    let source = program.with_extension("c");
    std::fs::write(&source, SOURCE)?;
    let defines = [format!("-D{define}"), format!("-DSECTIONS={SECTIONS}")];
    let mut cc = Command::new("cc");
    cc.arg("-O2").args(defines).arg("-o").args([program, &source]).arg(format!("-l{library}"));
    let out = cc.output().context("cc")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "cc: {}", said.lines().find(|l| l.contains("error")).unwrap_or(&said));
    Ok(())
}

/// The running C program. It makes one measurement for each byte that it reads.
struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(program: &Path) -> Result<Peer> {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (requests, answers) =
            (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        Ok(Peer { child, requests, answers: BufReader::new(answers) })
    }

    fn nanoseconds(&mut self) -> Result<f64> {
        self.requests.write_all(b"!")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let value = line.trim().parse().ok().filter(|ns| *ns > 0.0);
        value.with_context(|| format!("the C program printed '{}'", line.trim()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The program waits for input for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
