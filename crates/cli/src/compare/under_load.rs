// SPDX-License-Identifier: Apache-2.0
//! A server under a load: the options, and one round, in which it is started, loaded, measured and stopped.

use super::known::{Known, shell_status};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use hugelift_core::printable::Escape;
use hugelift_core::quantity;
use hugelift_linux::io::console::say;
use hugelift_measure::comparison::Run;
use hugelift_measure::perf::watch::Watch;
use hugelift_measure::pmu::counts::About;
use hugelift_measure::program::Program;
use hugelift_measure::ready::Ready;
use hugelift_measure::server::{Server, number};
use hugelift_measure::timed::Seen;
use hugelift_measure::{child, inspection, interrupt};
use regex::Regex;
use std::cell::Cell;
use std::time::Duration;

/// Options to compare servers under a load.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Compare a server: in each round it is started (without a shell, which only splits the words),
    /// loaded when it is ready, and stopped by SIGTERM
    #[arg(long, value_name = "CMD", group = "subject", requires_all = ["ready", "load", "metric"])]
    pub server: Option<String>,

    /// The server is ready when this port or unix socket accepts a connection, or when the server
    /// has printed a line that matches
    #[arg(long, value_name = "PORT|SOCKET|REGEX", requires = "server")]
    pub ready: Option<Ready>,

    /// The load, run in a shell
    #[arg(long, value_name = "CMD", requires = "server")]
    pub load: Option<String>,

    /// With --server: finds the metric in the load's output, the first group of the last match. With --pid: a
    /// shell command that prints a counter of the work that is done, such as the requests so far
    #[arg(long, value_name = "REGEX|CMD", requires = "subject", conflicts_with = "command")]
    pub metric: Option<String>,

    /// The metric is a rate (transactions a second) or a gauge of which higher is better. Without this
    /// option, lower is
    #[arg(long, requires = "subject", conflicts_with = "command")]
    pub higher_is_better: bool,

    /// Finds a second number in the load's output, of which lower is better: a latency beside the throughput
    #[arg(long, value_name = "REGEX", requires = "server")]
    pub latency: Option<Regex>,

    /// Finds the number of transactions in the load's output [default: if the metric is a rate, the
    /// rate times the load's duration]
    #[arg(long, value_name = "REGEX", requires = "server")]
    pub count: Option<Regex>,

    /// How long the server has to become ready
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = quantity::duration)]
    pub ready_timeout: Duration,

    /// How long the server has to end after SIGTERM before it is killed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    pub stop_timeout: Duration,
}

/// How servers are compared.
pub struct UnderLoad {
    ready: Ready,
    /// The load, for a shell.
    pub load: String,
    metric: Regex,
    /// The metric is a rate.
    pub higher_is_better: bool,
    latency: Option<Regex>,
    count: Option<Regex>,
    ready_timeout: Duration,
    stop_timeout: Duration,
    /// The message about SIGKILL was printed; it comes once.
    said_of_kill: Cell<bool>,
}

impl UnderLoad {
    /// Takes over the options; `None` if they compare a command, not a server.
    ///
    /// # Errors
    /// The metric is not a regular expression.
    pub fn new(args: &ServerArgs) -> Result<Option<UnderLoad>> {
        let (Some(_), Some(ready), Some(load), Some(metric)) =
            (&args.server, &args.ready, &args.load, &args.metric)
        else {
            return Ok(None);
        };
        // The regex crate's message has several lines.
        let regex = Regex::new(metric)
            .ok()
            .with_context(|| format!("--metric '{}' is not a regular expression", metric.escaped()))?;
        Ok(Some(UnderLoad {
            ready: ready.clone(),
            load: load.clone(),
            metric: regex,
            higher_is_better: args.higher_is_better,
            latency: args.latency.clone(),
            count: args.count.clone(),
            ready_timeout: args.ready_timeout,
            stop_timeout: args.stop_timeout,
            said_of_kill: Cell::new(false),
        }))
    }

    /// Returns whether the server's CPU time is given per transaction.
    pub fn counts_transactions(&self) -> bool {
        self.count.is_some() || self.higher_is_better
    }

    /// Returns whether a latency is measured.
    pub fn has_latency(&self) -> bool {
        self.latency.is_some()
    }

    /// Makes a round that is not timed: it warms up, and reads hugelift's report if the
    /// server is lifted. `program` makes the server, with further options of `hugelift run`.
    ///
    /// # Errors
    /// As [`UnderLoad::run`].
    pub fn inspect(&self, program: impl Fn(&[String]) -> Program, lifted: bool, side: &str) -> Result<Known> {
        let dir = tempfile::tempdir().context("a temporary directory")?;
        let report = dir.path().join("report");
        let more = if lifted { vec!["--report".into(), report.escaped().to_string()] } else { Vec::new() };
        let (run, _) = self.run(&program(&more), side, false)?;
        let seen = Seen { memory: run.memory, peak_bytes: run.peak_bytes };
        let said = std::fs::read_to_string(&report).ok().and_then(|text| inspection::parse_report(&text));
        Ok(Known {
            seen,
            liftable: said.as_ref().and_then(|said| said.liftable),
            why_not: said.and_then(|said| said.why_not),
        })
    }

    /// Makes one round. With `counted` the server is counted under the load; the second value says what of it.
    ///
    /// # Errors
    /// The server does not become ready or ends too soon; the load fails or prints no metric.
    pub fn run(&self, program: &Program, side: &str, counted: bool) -> Result<(Run, Option<About>)> {
        let server = Server::start(program, &self.ready, self.ready_timeout)?;
        let mut watch = counted.then(|| server.watch()).transpose()?;
        watch.iter_mut().for_each(Watch::enable);
        let before = server.cpu()?;
        let (status, said, took) = child::shell(&self.load, &[("HUGELIFT_SIDE", side)])?;
        interrupt::check()?;
        ensure!(
            status.success(),
            "--load '{}' ended with {status}; its output:\n{}",
            self.load,
            said.trim_end()
        );
        let counts = watch.as_ref().map(|watch| Box::new(watch.counts()));
        let cpu = server.cpu()? - before;
        let seen = server.memory_now()?;
        let metric = number(&self.metric, &said)?;
        let transactions = match &self.count {
            Some(count) => number(count, &said)?,
            None if self.higher_is_better => metric * took.as_secs_f64(),
            None => 1.0,
        };
        let latency = self.latency.as_ref().map(|latency| number(latency, &said)).transpose()?;
        let (status, killed) = server.stop(self.stop_timeout)?;
        if killed && !self.said_of_kill.replace(true) {
            say(&format!(
                "the server did not end within {:?} after SIGTERM and was killed (--stop-timeout)",
                self.stop_timeout
            ));
        }
        let run = Run {
            wall: took.as_secs_f64(),
            status: shell_status(status),
            peak_bytes: seen.peak_bytes,
            memory: seen.memory,
            metric: Some(metric),
            latency,
            counts,
            transactions: self.counts_transactions().then_some(transactions),
            server_cpu: (transactions > 0.0 && cpu > 0.0).then(|| cpu / transactions),
            ..Run::default()
        };
        Ok((run, watch.map(|watch| watch.about().clone())))
    }
}
