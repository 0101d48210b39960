// SPDX-License-Identifier: Apache-2.0
//! Measures redis under a steady load while it saves its data (BGSAVE: fork(2), and the child writes the
//! file), with and without huge pages. The server is started for the experiment, in a temporary folder, and
//! listens on a unix socket only.

mod client;

use crate::memory::Pages;
use crate::progress::Progress;
use crate::results::Hue;
use anyhow::{Context as _, Result};
use client::{Client, VALUE};
use hugelift_core::malloc::{self, settings};
use hugelift_core::printable::Escape;
use hugelift_measure::program::Program;
use hugelift_measure::ready::Ready;
use hugelift_measure::server::Server;
use hugelift_os::elf::malloc::allocators;
use hugelift_os::launch::lookup::resolve;
use hugelift_os::proc::procfs::Process;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of all values in the server.
    pub bytes: u64,
    /// How often a server is started and saves its data on each side.
    pub rounds: usize,
    /// Commands per second.
    pub rate: u32,
}

impl Options {
    /// Options for `--quick`.
    pub const QUICK: Options = Options { bytes: 128 << 20, rounds: 2, rate: 5000 };
    /// Options without `--quick`.
    pub const THOROUGH: Options = Options { bytes: 512 << 20, rounds: 5, rate: 5000 };
}

/// How the server runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Transparent huge pages off, by prctl(2).
    Off,
    /// Its allocator is set to ask for transparent huge pages.
    On,
    /// Under `hugelift run --malloc thp --parts all`.
    Lifted,
}

impl Side {
    /// All sides.
    pub const ALL: [Side; 3] = [Side::Off, Side::On, Side::Lifted];

    /// Returns the name that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Side::Off => "THP off",
            Side::On => "THP on",
            Side::Lifted => "hugelift",
        }
    }
}

/// Options of `hugelift run`.
const LIFTED: [&str; 4] = ["--malloc", "thp", "--parts", "all"];

/// How long the load runs before BGSAVE, for comparison.
const CALM: Duration = Duration::from_millis(800);

/// The measurements of one server.
#[derive(Clone, Debug)]
pub struct Served {
    /// How it ran.
    pub side: Side,
    /// Latencies of commands before BGSAVE, in nanoseconds.
    pub calm: Vec<u32>,
    /// Latencies of commands during BGSAVE, in nanoseconds.
    pub saving: Vec<u32>,
    /// How long BGSAVE took, in seconds.
    pub seconds: f64,
    /// Time of fork(2) as the server measured it, in microseconds.
    pub fork_us: u64,
    /// Bytes that were copied, as the child of the server counted them.
    pub copied: u64,
    /// Resident bytes of the server before BGSAVE.
    pub resident: u64,
    /// Bytes of its anonymous memory on huge pages, before and after BGSAVE.
    pub huge: [u64; 2],
}

/// Measures all sides. `done` is the share of the experiment that is done already. What was left out goes to
/// `notes`.
///
/// # Errors
/// redis-server is not installed, does not start or does not answer.
pub fn measure(
    options: Options,
    done: f64,
    progress: &mut Progress,
    notes: &mut Vec<String>,
) -> Result<Vec<Served>> {
    let path = resolve("redis-server".as_ref()).context("not measured (package redis-server)")?;
    let mut served = Vec::new();
    let mut longest = Duration::ZERO;
    for round in 0..options.rounds {
        let mut sides = Side::ALL;
        fastrand::shuffle(&mut sides);
        for (i, side) in sides.into_iter().enumerate() {
            let share = (round * sides.len() + i) as f64 / (options.rounds * sides.len()) as f64;
            if progress.left() < longest {
                notes.push("redis: there was no time for all rounds".into());
                return Ok(served);
            }
            if !progress.go_on(done + (1.0 - done) * share, &format!("redis under load, {}", side.name())) {
                return Ok(served);
            }
            let began = Instant::now();
            match once(&path, side, options, progress) {
                Ok(one) => served.extend(one),
                // Ctrl-C has ended the server too.
                Err(_) if progress.is_over() => return Ok(served),
                Err(why) => return Err(why.context(side.name())),
            }
            longest = longest.max(began.elapsed());
        }
    }
    Ok(served)
}

fn program(path: &Path, side: Side, folder: &Path) -> Result<Program> {
    let (socket, shown) = (folder.join("socket"), folder.escaped().to_string());
    let mut argv = vec![path.escaped().to_string()];
    let options = [
        ["--port", "0"],
        ["--save", ""],
        ["--appendonly", "no"],
        ["--daemonize", "no"],
        // By default redis would switch transparent huge pages off itself.
        ["--disable-thp", "no"],
        ["--dir", &shown],
    ];
    argv.extend(options.iter().flatten().map(ToString::to_string));
    argv.extend(["--unixsocket".into(), socket.escaped().to_string()]);
    let mut program = Program::new(argv);
    match side {
        Side::Off => program.no_thp = true,
        Side::On => {
            let variables = settings(&allocators(path), malloc::Pages::Thp, |name| std::env::var(name).ok());
            program.env.extend(variables.into_iter().map(|s| (s.name.into(), s.value.into())));
        }
        Side::Lifted => {
            let own = std::env::current_exe().context("own path")?;
            program = program.lifted(&own, &LIFTED);
        }
    }
    Ok(program)
}

/// Measures one server. Returns `None` if the experiment is stopped in between.
fn once(path: &Path, side: Side, options: Options, progress: &mut Progress) -> Result<Option<Served>> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let folder = tempfile::Builder::new().prefix("hugelift-lab-").tempdir().context("a temporary folder")?;
    let socket = folder.path().join("socket");
    let server =
        Server::start(&program(path, side, folder.path())?, &Ready::Socket(socket.clone()), PATIENCE)?;
    let mut client = Client::connect(&socket)?;
    let keys = options.bytes / VALUE as u64;
    client.fill(keys)?;
    let process =
        Process::new(u32::try_from(client.info("server", "process_id")?).context("its process id")?);
    let began = Instant::now();
    let calm = client.load(keys, options.rate, || Ok(progress.is_over() || began.elapsed() >= CALM))?;
    let (resident, huge_before) = memory(process)?;

    let mut other = Client::connect(&socket)?;
    other.ask(&["BGSAVE"])?;
    let began = Instant::now();
    let saving = client.load(keys, options.rate, || {
        Ok(progress.is_over() || other.info("persistence", "rdb_bgsave_in_progress")? == 0)
    })?;
    if progress.is_over() {
        return Ok(None);
    }
    let seconds = began.elapsed().as_secs_f64();
    let (_, huge_after) = memory(process)?;
    let served = Served {
        side,
        calm,
        saving,
        seconds,
        fork_us: client.info("stats", "latest_fork_usec")?,
        copied: client.info("persistence", "rdb_last_cow_size")?,
        resident,
        huge: [huge_before, huge_after],
    };
    drop((client, other));
    server.stop(PATIENCE)?;
    Ok(Some(served))
}

/// Returns the resident bytes, and how many of them are on transparent huge pages.
fn memory(process: Process) -> Result<(u64, u64)> {
    let all = process.smaps()?;
    Ok((all.iter().map(|usage| usage.rss).sum(), all.iter().map(|usage| usage.anon_huge).sum()))
}

/// Returns the colour of its curves.
pub fn hue(side: Side) -> Hue {
    match side {
        Side::Off => Pages::Small.hue(),
        Side::On => Pages::Thp.hue(),
        Side::Lifted => Hue::Second,
    }
}
