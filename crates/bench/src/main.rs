// SPDX-License-Identifier: Apache-2.0
//! The demo and the benchmarks of hugelift. Every figure comes from interleaved runs, in random order within
//! each round, and has a 95 % interval. Which memory is huge is read from smaps on both sides while the
//! program runs.

mod advise;
mod advise_memory;
mod anon;
mod backings;
mod children;
mod copy;
mod data;
mod databases;
mod demo;
mod equal;
mod equal_switched;
mod fleet;
mod hashes;
mod hot;
mod jit;
mod jumps;
mod late;
mod options;
mod parts;
mod peers;
mod pool;
mod primed;
mod programs;
mod reference;
mod sampling;
mod service;
mod shm;
mod startup;
mod stops;
mod warm;

use anyhow::{Context as _, Result, bail};
use hugelift_measure::generated::{self, Hot, Linking};
use hugelift_measure::{child, host, interrupt};
use options::Options;
use std::process::ExitCode;

const USAGE: &str = "\
usage: hugelift-bench COMMAND [--rounds N] [--megabytes N] [--only PROGRAM]

  demo      a program with 64 MB of code, bare and lifted in turn
  backings  what each backing costs, keeps and needs, as a table in Markdown
  startup   what hugelift adds to /bin/true
  copy      what lifting 64 MB adds, against the bare copy of the bytes
  clang     the same for clang++ with all its shared objects
  warm      second starts of large programs, from the store and primed, and many small compilations
  children  programs that start many children: these plain and lifted
  jumps     CPU time of the program with 64 MB of code: each backing, dynamic and static
  parts     a large .bss, and the hashes of perl and mawk, with all parts lifted
  anon      hashes of perl, php, Python, Go and the JVM on huge pages: by attach, by the allocator, for all programs
  hot       what attach and run copy of programs that work, and the share of their samples on the copies
  late      how soon programs that run long are huge under hugelift run, beside run --eager
  sampling  what inspect --heat costs the program that it samples
  advise    what advise says of 38 programs, beside what huge pages for their code bring
  advise-memory
            what advise says of the data of 26 programs, beside what huge pages for heap, anonymous memory and data files bring
  equal     how often a comparison of a process that runs calls a difference where nothing changes
  stops     for how long attach and restore stop a thread, on a quiet machine and on a busy one
  primed    clang++ with its libraries in small pages of the page cache, and primed
  data      programs that read data files through a mapping, the files in small pages, primed, and by their own switch
  jit       programs that make their code while they run: bare, after attach, and by their own switch
  shm       PostgreSQL with 2 GB of shared buffers in small pages, after attach, and by huge_pages=on with a pool
  peers     entering and exiting of the epoch crate, against ConcurrencyKit and userspace RCU
  service   what hugelift service costs beside 5,000 processes and 200 starts a second
  fleet     simulates a fleet of machines with hugelift service; it measures nothing, and has options of its own:
            fleet --NAME VALUE (fleet help lists them)
  all       all of these except the demo, advise, advise-memory and fleet
  program LINKING
            makes the program with 64 MB of code, linked dynamic, static or static-pie, and
            prints a command that runs it for a second or two (for hugelift compare)

  --rounds N      how often to run each side (default: enough for a narrow interval)
  --megabytes N   how much code to generate (default 64)
  --only PROGRAM  of anon, data, hot, jit, late and stops: measure the case alone that needs this program (as php, lmdb);
                  of advise and advise-memory: the program of this name

HUGELIFT_BIN names the hugelift to measure; without it, the one beside this program.";

fn main() -> ExitCode {
    hugelift_linux::inherited_signals::record();
    match run(std::env::args().skip(1)) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("hugelift-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<ExitCode> {
    let command = args.next().context(USAGE)?;
    if command == "fleet" {
        return fleet::run(args).map(|()| ExitCode::SUCCESS);
    }
    let linking = if command == "program" { args.next() } else { None };
    let mut options = Options { rounds: None, megabytes: 64, only: None };
    while let Some(option) = args.next() {
        let value = args.next().with_context(|| format!("{option} needs a value\n{USAGE}"))?;
        if option == "--only" {
            options.only = Some(value);
            continue;
        }
        let number = || value.parse().ok().filter(|&n| n > 0);
        let number =
            number().with_context(|| format!("{option} {value}: not a whole number of 1 or more"))?;
        match option.as_str() {
            "--rounds" => options.rounds = Some(number),
            "--megabytes" => options.megabytes = number as u64,
            _ => bail!("unknown option {option}\n{USAGE}"),
        }
    }
    if matches!(command.as_str(), "help" | "-h" | "--help") {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    if command == "program" {
        let path = generated::jumps(options.megabytes, linking_of(linking.as_deref())?)?;
        println!("{}", generated::run_for(&path, Hot::OneAPage, 1.5)?);
        return Ok(ExitCode::SUCCESS);
    }
    type Bench = fn(&Options) -> Result<()>;
    let benches: &[Bench] = match command.as_str() {
        "demo" => return with_host(|| demo::run(&options)),
        "backings" => &[backings::run],
        "startup" => &[startup::run],
        "copy" => &[copy::jumps],
        "clang" => &[copy::clang],
        "warm" => &[warm::start, warm::compile, warm::start_primed],
        "children" => &[children::run],
        "jumps" => &[jumps::run],
        "parts" => &[parts::run],
        "anon" => &[anon::run],
        "hot" => &[hot::run],
        "late" => &[late::run],
        "sampling" => &[sampling::run],
        "advise" => &[advise::run],
        "advise-memory" => &[advise_memory::run],
        "equal" => &[equal::run, equal_switched::run],
        "stops" => &[stops::run],
        "primed" => &[primed::run],
        "data" => &[data::run],
        "jit" => &[jit::run],
        "shm" => &[shm::run],
        "peers" => &[peers::run],
        "service" => &[service::run],
        "all" => &[
            backings::run,
            startup::run,
            copy::jumps,
            copy::clang,
            warm::start,
            warm::compile,
            children::run,
            jumps::run,
            parts::run,
            anon::run,
            late::run,
            hot::run,
            sampling::run,
            equal::run,
            equal_switched::run,
            stops::run,
            primed::run,
            data::run,
            jit::run,
            shm::run,
            peers::run,
            service::run,
            warm::start_primed,
        ],
        _ => bail!("unknown command {command}\n{USAGE}"),
    };
    with_host(|| {
        for bench in benches {
            bench(&options)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn linking_of(word: Option<&str>) -> Result<Linking> {
    Ok(match word {
        Some("dynamic") => Linking::Dynamic,
        Some("static") => Linking::Static,
        Some("static-pie") => Linking::StaticPie,
        other => bail!(
            "program '{}': LINKING is dynamic, static or static-pie\n{USAGE}",
            other.unwrap_or_default()
        ),
    })
}

fn with_host(work: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    println!("{}", host::describe());
    interrupt::prepare()?;
    child::adopt_orphans()?;
    work()
}
