// SPDX-License-Identifier: Apache-2.0
//! Measures how often an experiment on a process that runs calls a difference where there is none: nothing changes between the
//! periods that it compares. An interval of 95 % may do so once in 20 experiments. The same windows serve all measures of work,
//! as all are read at the same moments.

use crate::options::Options;
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::live::{CpuClock, Window, Work, WorkCounter};
use hugelift_measure::program::{Output, Program};
use hugelift_measure::stats::{self, Verdict};
use std::time::{Duration, Instant};

const EXPERIMENTS: usize = 200;
const PAIRS: usize = 20;
const WINDOW: Duration = Duration::from_millis(20);
/// Until the programs are under way.
const READY: Duration = Duration::from_secs(2);
const SEED: u64 = 31;

/// A server of requests, whose work for each differs, and its client: a measure of work of the parent, which is measured.
const PYTHON: &str = "\
import os, random, socket
server, client = socket.socketpair()
if os.fork() == 0:
    server.close()
    while client.send(b'x' * random.randrange(10, 4000)): client.recv(4096)
client.close()
table = {n: str(n) for n in range(100000)}
while data := server.recv(4096):
    found = [table[random.randrange(100000)] for _ in range(random.randrange(20, 400))]
    server.send(''.join(found)[:2000].encode())
";
const PERL: &str = "\
my $n = 0; my %h;
while (1) {
    open my $f, '<', '/proc/self/status'; my @lines = <$f>; close $f;
    for (1 .. rand 300) { $h{int rand 50000} .= $n++ % 7 } %h = () if $n % 1000000 == 0;
    select undef, undef, undef, 0.0001 if rand() < 0.3;
}";

/// Prints of each program and each measure of work how many of the experiments call a difference.
///
/// # Errors
/// A program cannot be started or read.
pub fn run(options: &Options) -> Result<()> {
    let experiments = options.rounds.unwrap_or(EXPERIMENTS);
    println!(
        "\nequal sides: of {experiments} experiments of {PAIRS} pairs of {WINDOW:?}, in which nothing changes, so many call a \
         difference"
    );
    println!("  CPU time per                   python3       perl");
    let loads = [["python3", "-c", PYTHON], ["perl", "-e", PERL]];
    let windows = loads.iter().map(|words| windows_of(words, experiments));
    let windows = windows.collect::<Result<Vec<_>>>()?;
    let rows = Work::ALL.into_iter().map(Some).chain([None]);
    for work in rows {
        let unit = work.map_or("second", Work::unit);
        let columns: Vec<String> = windows.iter().map(|windows| column(windows, work)).collect();
        println!("  {unit:<27} {:>10} {:>10}", columns[0], columns[1]);
    }
    Ok(())
}

/// Returns what a program did in windows that follow each other.
fn windows_of(words: &[&str], experiments: usize) -> Result<Vec<Window>> {
    let program = Program { output: Output::Discard, ..Program::new(words.iter().copied()) };
    let child = Child::start(&mut program.command()?)?;
    std::thread::sleep(READY);
    let counter = WorkCounter::open(child.pid());
    let clock = CpuClock::open(child.pid());
    let read = || Some((clock.now().ok()?.as_secs_f64(), counter.counts()));
    let mut windows = Vec::new();
    let mut next = Instant::now();
    let mut before = read();
    while windows.len() < experiments * PAIRS * 2 {
        interrupt::check()?;
        ensure!(!child.has_ended()?, "{} has ended", words[0]);
        next += WINDOW;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // A late window is no reason for a short one after it.
        next = next.max(Instant::now() - WINDOW / 2);
        let now = read();
        let (first, last) = (before.context("its CPU time")?, now.context("its CPU time")?);
        let since = |n: usize| Some(last.1[n]? - first.1[n]?);
        windows.push(Window { cpu: last.0 - first.0, counts: std::array::from_fn(since) });
        before = now;
    }
    Ok(windows)
}

/// Returns how many experiments call a difference, of how many: "9 of 198"; "-" if nothing was counted.
fn column(windows: &[Window], work: Option<Work>) -> String {
    let figure = |window: &Window| match work {
        None => Some(window.cpu),
        Some(work) => {
            let at = Work::ALL.iter().position(|one| *one == work)?;
            window.counts[at].filter(|count| *count > 0.0).map(|count| window.cpu / count)
        }
    };
    // A window without work is measured again by `hugelift compare`.
    let figures: Vec<f64> =
        windows.iter().filter_map(|window| figure(window).filter(|figure| *figure > 0.0)).collect();
    let mut random = fastrand::Rng::with_seed(SEED);
    let differs = |experiment: &[f64]| {
        let pairs: Vec<(f64, f64)> = experiment
            .chunks_exact(2)
            .map(|pair| if random.bool() { (pair[0], pair[1]) } else { (pair[1], pair[0]) })
            .collect();
        stats::ratio(&pairs).is_ok_and(|ratio| matches!(ratio.verdict(1.0), Verdict::Less | Verdict::More))
    };
    let found: Vec<bool> = figures.chunks_exact(2 * PAIRS).map(differs).collect();
    if found.is_empty() {
        return "-".into();
    }
    format!("{} of {}", found.iter().filter(|differs| **differs).count(), found.len())
}
