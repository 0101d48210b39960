// SPDX-License-Identifier: Apache-2.0
//! Measures PostgreSQL with large shared buffers: in small pages, after `hugelift attach --parts shm` of its first process, and with
//! PostgreSQL's own switch and a pool. The servers run side by side, each with data of its own, and take turns.

mod server;

use crate::databases::find_postgres;
use crate::options::Options;
use crate::pool;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_lab::setting::Setting;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::stats;
use server::{BUFFERS, Data, Server, Turn};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 8;
/// Which shared memory gets transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const SHARED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// What PostgreSQL has in its shared memory besides the buffers is less than this.
const MORE: u64 = 256 << 20;

/// Prints the CPU time of the server for each transaction, the transactions in a second and the page tables of its processes,
/// each as the ratio to small pages.
///
/// # Errors
/// A server or its load failed, or nothing became huge.
pub fn run(options: &Options) -> Result<()> {
    println!("\nshared memory: pgbench -S with {} MB of shared buffers, ratio to small pages", BUFFERS >> 20);
    if find_postgres().is_none() || Command::new("pgbench").arg("--version").output().is_err() {
        println!("  SKIP: no postgres: ci/setup.sh test");
        return Ok(());
    }
    // Under this setting Linux aligns the memory so that it can be huge.
    let setting = Setting::change(SHARED, "advise")?;
    let dir = TempDir::new()?;
    let data = Data::make(dir.path())?;
    let pool = pool::grow(BUFFERS + MORE)?;
    let servers = [data.start("small", "off")?, data.start("attached", "off")?, data.start("own", "on")?];
    attach(&servers[1])?;
    let names = ["small", "attach --parts shm", "huge_pages=on, a pool"];
    let mut sides: Vec<Side<Turn>> =
        names.iter().zip(&servers).map(|(name, server)| Side::new(name, || server.turn())).collect();
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
    for ((name, server), turns) in names.iter().zip(&servers).zip(&results) {
        let (all, huge) = server.shared()?;
        let median = |figure: fn(&Turn) -> f64| -> Result<f64> {
            Ok(stats::median(&turns.iter().map(figure).collect::<Vec<_>>())?)
        };
        println!(
            "  {name}: {:.1} us of CPU time for a transaction, {:.0} transactions/s, page tables {:.0} MB, huge {} of {} MB",
            median(|turn| turn.cpu)? * 1e6,
            median(|turn| turn.per_second)?,
            median(|turn| turn.tables)? / f64::from(1 << 20),
            huge >> 20,
            all >> 20,
        );
    }
    for (name, turns) in names.iter().zip(&results).skip(1) {
        let ratio = |figure: fn(&Turn) -> f64| stats::ratio(&pairs(&results[0], turns, figure));
        let (cpu, speed) = (ratio(|turn| turn.cpu)?, ratio(|turn| turn.per_second)?);
        println!("  {name}: CPU time {cpu:.3}, transactions/s {speed:.3}");
    }
    drop(sides);
    drop(servers);
    drop(pool);
    setting.restore()
}

/// Has hugelift put the shared memory of a server on huge pages.
fn attach(server: &Server) -> Result<()> {
    let mut command = Command::new(hugelift()?);
    command.args(["attach", "--parts", "shm"]).arg(server.pid().to_string());
    let out = command.output().context("hugelift attach")?;
    ensure!(out.status.success(), "hugelift attach: {}", String::from_utf8_lossy(&out.stderr));
    println!("  {}", String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default());
    // The processes that were stopped for it go on.
    sleep(Duration::from_millis(100));
    ensure!(server.shared()?.1 > 0, "nothing is huge: {}", String::from_utf8_lossy(&out.stdout));
    Ok(())
}
