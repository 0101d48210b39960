// SPDX-License-Identifier: Apache-2.0
//! PostgreSQL on a copy of the data of pgbench, and its load.

use crate::databases::{find_postgres, initialized, start_words};
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_linux::proc::clock::ticks_per_second;
use hugelift_linux::proc::procfs::Process;
use hugelift_measure::child::Child;
use hugelift_measure::interrupt;
use hugelift_measure::tree::{ProcessTree, descendants};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The buffers of a server. They hold all of its data.
pub const BUFFERS: u64 = 2 << 30;
/// Of pgbench: 100,000 rows, 15 MB, for each.
const SCALE: &str = "100";
const CLIENTS: usize = 100;
/// Transactions of each client in a turn.
const EACH: usize = 400;
/// For a start, or for the processes of a turn to end.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// What pgbench has made, which is copied for each server.
pub struct Data {
    template: PathBuf,
    folder: PathBuf,
}

/// A server. It is killed when the value is dropped.
pub struct Server {
    child: Child,
    sockets: PathBuf,
}

/// What a turn has shown.
pub struct Turn {
    /// CPU seconds of the processes of the server for each transaction.
    pub cpu: f64,
    /// Transactions in a second.
    pub per_second: f64,
    /// The most bytes of page tables of all processes of the server.
    pub tables: f64,
}

impl Data {
    /// Makes the data in a folder.
    ///
    /// # Errors
    /// PostgreSQL or pgbench fails.
    pub fn make(folder: &Path) -> Result<Data> {
        let template = initialized(folder, "template")?;
        let data = Data { template, folder: folder.into() };
        let server = data.start_in(&data.template, "off")?;
        server.client("pgbench", &["-i", "-q", "-s", SCALE])?;
        server.client(
            "psql",
            &["-c", "CREATE EXTENSION pg_prewarm", "-c", "VACUUM ANALYZE", "-c", "CHECKPOINT"],
        )?;
        drop(server);
        Ok(data)
    }

    /// Starts a server on a copy of the data, which it reads into its buffers.
    ///
    /// # Errors
    /// There is no place for the copy, or the server does not start.
    pub fn start(&self, name: &str, huge_pages: &str) -> Result<Server> {
        let copy = self.folder.join(name);
        let out = Command::new("cp").arg("-a").args([&self.template, &copy]).output().context("cp")?;
        ensure!(out.status.success(), "cp: {}", String::from_utf8_lossy(&out.stderr));
        let server = self.start_in(&copy, huge_pages)?;
        let load = "SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')";
        server.client("psql", &["-c", load])?;
        Ok(server)
    }

    fn start_in(&self, data: &Path, huge_pages: &str) -> Result<Server> {
        let settings = format!(
            "-c shared_buffers={}MB -c huge_pages={huge_pages} -c max_connections={} -c listen_addresses= -k \"$1\"",
            BUFFERS >> 20,
            2 * CLIENTS
        );
        let words = start_words(&format!("-D \"$1\" {settings} >\"$1/log\" 2>&1"), "postgres", data)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let server = Server { child: Child::start(&mut command)?, sockets: data.into() };
        let began = Instant::now();
        while server.client("psql", &["-c", "SELECT 1"]).is_err() {
            interrupt::check()?;
            if server.child.has_ended()? || began.elapsed() > PATIENCE {
                bail!("PostgreSQL: {}", fs::read_to_string(data.join("log")).unwrap_or_default());
            }
            sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Server {
    /// Returns the id of its first process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Returns the bytes of its first process' mapping of the buffers, and how many of them huge pages map.
    ///
    /// # Errors
    /// The process has ended.
    pub fn shared(&self) -> Result<(u64, u64)> {
        let memory = Process::new(self.pid()).smaps()?;
        let buffers =
            memory.iter().find(|usage| usage.mapping.range.len() >= BUFFERS).context("no buffers")?;
        Ok((buffers.mapping.range.len(), buffers.huge()))
    }

    /// Lets pgbench read, with clients that connect anew.
    ///
    /// # Errors
    /// A transaction fails.
    pub fn turn(&self) -> Result<Turn> {
        let at_rest = descendants(self.pid())?.len();
        let before = ProcessTree::now(self.pid())?.of_children();
        let (clients, each) = (CLIENTS.to_string(), EACH.to_string());
        let mut command =
            self.command("pgbench", &["-n", "-S", "-M", "prepared", "-c", &clients, "-t", &each])?;
        let began = Instant::now();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("pgbench")?;
        let mut tables = 0;
        let status = loop {
            if let Some(status) = child.try_wait().context("pgbench")? {
                break status;
            }
            tables = tables.max(self.tables()?);
            sleep(PAUSE);
        };
        let seconds = began.elapsed().as_secs_f64();
        ensure!(status.success(), "pgbench: {status}");
        while descendants(self.pid())?.len() > at_rest {
            ensure!(began.elapsed().as_secs_f64() < seconds + PATIENCE.as_secs_f64(), "clients are left");
            sleep(PAUSE / 10);
        }
        let ticks = ProcessTree::now(self.pid())?.of_children() - before;
        let transactions = (CLIENTS * EACH) as f64;
        let cpu = ticks as f64 / ticks_per_second() as f64 / transactions;
        Ok(Turn { cpu, per_second: transactions / seconds, tables: tables as f64 })
    }

    /// Returns the bytes of page tables of all its processes.
    fn tables(&self) -> Result<u64> {
        let of = |pid: u32| -> Option<u64> {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse().ok()
        };
        let all = descendants(self.pid())?;
        Ok(all.iter().filter_map(|stat| of(stat.pid)).sum::<u64>() << 10)
    }

    fn client(&self, program: &str, words: &[&str]) -> Result<()> {
        let out = self.command(program, words)?.output().with_context(|| program.to_string())?;
        ensure!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
        Ok(())
    }

    fn command(&self, program: &str, words: &[&str]) -> Result<Command> {
        let bin = find_postgres().context("no PostgreSQL")?;
        let mut command = Command::new(bin.join(program));
        let address: [OsString; 4] =
            ["-h".into(), self.sockets.clone().into(), "-U".into(), "postgres".into()];
        command.args(address).args(words).arg("postgres").stdin(Stdio::null());
        Ok(command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL ends at once, with all its processes.
        let ended = kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGQUIT);
        if ended.is_ok() {
            _ = self.child.wait_for_end();
        }
    }
}
