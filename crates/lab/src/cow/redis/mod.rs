// SPDX-License-Identifier: Apache-2.0
//! Measures redis under a steady load while it saves its data (BGSAVE: fork(2), and the child writes the
//! file), with and without huge pages. The servers are started for the experiment, in temporary folders, and
//! listen on unix sockets only.
//!
//! The servers of all sides run at the same time, and save their data in turns. While one of them is measured,
//! the others have nothing to do, and their split huge pages may be joined.

mod client;

use crate::memory::Pages;
use crate::progress::Progress;
use crate::results::Hue;
use anyhow::{Context as _, Result, bail, ensure};
use client::{Client, VALUE};
use hugelift_core::addr::human_bytes;
use hugelift_core::malloc::{self, settings};
use hugelift_core::printable::Escape;
use hugelift_linux::elf::malloc::allocators;
use hugelift_linux::lookup::resolve;
use hugelift_linux::machine::memory_left_here;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::program::Program;
use hugelift_measure::ready::Ready;
use hugelift_measure::server::Server;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of all values in a server.
    pub bytes: u64,
    /// How often a server of each side is started.
    pub servers: usize,
    /// How often each server saves its data.
    pub saves: usize,
    /// Commands per second.
    pub rate: u32,
    /// How long the experiment waits after the last save of the last servers until the split pages are joined.
    pub patience: Duration,
}

impl Options {
    /// Options for `--quick`.
    pub const QUICK: Options =
        Options { bytes: 48 << 20, servers: 2, saves: 3, rate: 5000, patience: Duration::from_secs(4) };
    /// Options without `--quick`.
    pub const THOROUGH: Options =
        Options { bytes: 256 << 20, servers: 3, saves: 6, rate: 5000, patience: Duration::from_secs(12) };
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
const CALM: Duration = Duration::from_millis(200);

/// The share of the huge pages that must be back until they count as joined.
const JOINED: f64 = 0.9;

/// The measurements of one save.
#[derive(Clone, Debug)]
pub struct Save {
    /// How the server ran.
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

/// The huge pages of one server from its start to some time after its last save.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rest {
    /// How the server ran.
    pub side: Side,
    /// Bytes on huge pages before the first save, after the last one, and when the experiment stopped waiting.
    pub huge: [u64; 3],
    /// How long after the last save the pages were joined, or the experiment stopped waiting, in seconds.
    pub seconds: f64,
}

impl Rest {
    /// Returns whether writes during a save have split huge pages.
    pub fn were_split(&self) -> bool {
        (self.huge[1] as f64) < JOINED * self.huge[0] as f64
    }

    /// Returns whether as many pages are huge again as before the first save.
    pub fn is_joined(&self) -> bool {
        self.huge[2] as f64 >= JOINED * self.huge[0] as f64
    }
}

/// The measurements of all servers.
#[derive(Clone, Default, Debug)]
pub struct Served {
    /// The saves. Those of each side with the same index are of one round.
    pub saves: Vec<Save>,
    /// What became of the huge pages of each server that had some.
    pub rests: Vec<Rest>,
}

/// A server that runs. The fields are dropped in this order.
struct Running {
    side: Side,
    process: Process,
    client: Client,
    /// Bytes on huge pages before the first save.
    huge: u64,
    _server: Server,
    folder: tempfile::TempDir,
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
) -> Result<Served> {
    let path = resolve("redis-server".as_ref()).context("not measured (package redis-server)")?;
    let mut served = Served::default();
    // Each server has its values, their copies, and its tables.
    let needed = 3 * Side::ALL.len() as u64 * options.bytes;
    let left = memory_left_here();
    if needed > left {
        let (needed, left) = (human_bytes(needed), human_bytes(left));
        bail!("not measured: three servers take up to {needed}, and {left} is free");
    }
    let mut longest = Duration::ZERO;
    for generation in 0..options.servers {
        let share = done + (1.0 - done) * generation as f64 / options.servers as f64;
        if !progress.go_on(share, "redis under load") {
            return Ok(served);
        }
        let is_last = generation + 1 == options.servers;
        match generation_of(&path, options, is_last, &mut longest, progress, &mut served) {
            Ok(true) => {}
            Ok(false) => {
                if !progress.is_over() {
                    notes.push("redis: there was no time for all rounds".into());
                }
                return Ok(served);
            }
            // Ctrl-C has ended the servers too.
            Err(_) if progress.is_over() => return Ok(served),
            Err(why) => return Err(why),
        }
    }
    Ok(served)
}

/// Starts a server for each side and measures all of its saves, and if they are the last servers, what becomes
/// of their huge pages. Returns whether there was time for that.
fn generation_of(
    path: &Path,
    options: Options,
    is_last: bool,
    longest: &mut Duration,
    progress: &mut Progress,
    served: &mut Served,
) -> Result<bool> {
    let began = Instant::now();
    let mut running = Vec::new();
    for side in Side::ALL {
        if progress.is_over() || progress.left() < *longest + began.elapsed() {
            return Ok(false);
        }
        running.push(start(path, side, options).context(side.name())?);
    }
    for _ in 0..options.saves {
        if progress.left() < *longest {
            return Ok(false);
        }
        let began = Instant::now();
        let (round, _) = progress.undisturbed(|progress| {
            let mut round = Vec::new();
            fastrand::shuffle(&mut running);
            for server in &mut running {
                let side = server.side.name();
                match save(server, options, progress).context(side)? {
                    Some(save) => round.push(save),
                    None => return Ok(None),
                }
            }
            Ok(Some(round))
        })?;
        let Some(round) = round else { return Ok(false) };
        served.saves.extend(round);
        *longest = (*longest).max(began.elapsed());
    }
    if is_last {
        rest(&running, options.patience, progress, served)?;
    }
    Ok(true)
}

/// Waits until the split pages of all servers are joined, for at most `patience`.
fn rest(running: &[Running], patience: Duration, progress: &mut Progress, served: &mut Served) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(250);
    let began = Instant::now();
    let mut waiting = Vec::new();
    for server in running.iter().filter(|server| server.huge > 0) {
        let now = memory(server.process)?.1;
        waiting
            .push((server.process, Rest { side: server.side, huge: [server.huge, now, now], seconds: 0.0 }));
    }
    while waiting.iter().any(|(_, rest)| !rest.is_joined())
        && began.elapsed() < patience
        && progress.pause(PAUSE)
    {
        for (process, rest) in waiting.iter_mut().filter(|(_, rest)| !rest.is_joined()) {
            rest.huge[2] = memory(*process)?.1;
            rest.seconds = began.elapsed().as_secs_f64();
        }
    }
    // The servers were shuffled for their saves.
    waiting.sort_by_key(|(_, rest)| Side::ALL.iter().position(|side| *side == rest.side));
    if !progress.is_over() {
        served.rests.extend(waiting.into_iter().map(|(_, rest)| rest));
    }
    Ok(())
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

/// Starts a server and fills it.
fn start(path: &Path, side: Side, options: Options) -> Result<Running> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let folder = tempfile::Builder::new().prefix("hugelift-lab-").tempdir().context("a temporary folder")?;
    let socket = folder.path().join("socket");
    let server =
        Server::start(&program(path, side, folder.path())?, &Ready::Socket(socket.clone()), PATIENCE)?;
    let mut client = Client::connect(&socket)?;
    client.fill(keys(options))?;
    let process =
        Process::new(u32::try_from(client.info("server", "process_id")?).context("its process id")?);
    let huge = memory(process)?.1;
    Ok(Running { side, process, client, huge, _server: server, folder })
}

fn keys(options: Options) -> u64 {
    options.bytes / VALUE as u64
}

/// Measures one save. Returns `None` if the experiment is stopped in between.
fn save(server: &mut Running, options: Options, progress: &mut Progress) -> Result<Option<Save>> {
    const PATIENCE: Duration = Duration::from_secs(20);
    /// A failed save makes no file. So the server is asked from time to time, at one check in this many; to ask
    /// it more often would delay its commands.
    const ASK: u32 = 50;
    let Running { side, process, client, folder, .. } = server;
    let keys = keys(options);
    let file = folder.path().join("dump.rdb");
    let began = Instant::now();
    let calm = client.load(keys, options.rate, |_| Ok(progress.is_over() || began.elapsed() >= CALM))?;
    let (resident, huge_before) = memory(*process)?;
    // The child renames its file to this name at its end.
    if file.exists() {
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.escaped()))?;
    }
    client.ask(&["BGSAVE"])?;
    let began = Instant::now();
    let mut checks = 0;
    let saving = client.load(keys, options.rate, |client| {
        checks += 1;
        let is_over = file.exists() || progress.is_over();
        Ok(is_over || checks % ASK == 0 && client.info("persistence", "rdb_bgsave_in_progress")? == 0)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    while client.info("persistence", "rdb_bgsave_in_progress")? != 0 {
        if !progress.pause(Duration::from_millis(10)) {
            return Ok(None);
        }
        ensure!(began.elapsed().as_secs_f64() < seconds + PATIENCE.as_secs_f64(), "BGSAVE does not end");
    }
    ensure!(file.exists(), "BGSAVE has failed: is there room in {}?", folder.path().escaped());
    let (_, huge_after) = memory(*process)?;
    Ok(Some(Save {
        side: *side,
        calm,
        saving,
        seconds,
        fork_us: client.info("stats", "latest_fork_usec")?,
        copied: client.info("persistence", "rdb_last_cow_size")?,
        resident,
        huge: [huge_before, huge_after],
    }))
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
