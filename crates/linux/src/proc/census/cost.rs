// SPDX-License-Identifier: Apache-2.0
//! What a census costs: `cargo test --release -p hugelift-linux --lib census_costs -- --ignored --nocapture`.
//!
//! The CPU time is that of the thread that takes the census. `CENSUS_SLEEPING`, `CENSUS_SECONDS`,
//! `CENSUS_WARM` (seconds before that) and `CENSUS_EVENTS=0` change what is measured.

use super::*;
use crate::proc::connector::{Connector, Taken, Wanted};
use hugelift_core::census::{Census, Settings, Work};
use hugelift_core::proc_events::Event;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Candidates have at least so much code.
const LARGE: u64 = 2 << 20;

/// A census as a daemon takes it, and what it did.
struct Daemon {
    began: Instant,
    census: Census,
    reader: Reader,
    connector: Option<Connector>,
    events: Vec<Event>,
    counts: Counts,
}

#[derive(Default, Debug)]
struct Counts {
    turns: u64,
    events: u64,
    lost: u64,
    reads: u64,
    put_off: u64,
    gone: u64,
    scans: u64,
    scanning: Duration,
    reading: Duration,
    hearing: Duration,
}

impl Daemon {
    fn new(connector: Option<Connector>) -> Daemon {
        let census = Census::new(Settings::default(), connector.is_some());
        let (events, counts) = (Vec::new(), Counts::default());
        Daemon { began: Instant::now(), census, reader: Reader::new(), connector, events, counts }
    }

    fn turn(&mut self) -> Work {
        let (now, before) = (self.began.elapsed(), cpu_time_of_thread());
        if let Some(connector) = &mut self.connector {
            while connector.read(&mut self.events).unwrap() == Taken::Part {}
        }
        self.counts.turns += 1;
        self.counts.events += self.events.len() as u64;
        self.counts.lost += self.events.iter().filter(|event| **event == Event::Lost).count() as u64;
        self.events.drain(..).for_each(|event| self.census.event(now, event));
        self.counts.hearing += cpu_time_of_thread() - before;
        let mut work = self.census.next(now);
        if work.scan {
            let (pids, cpu) = list().unwrap();
            self.census.scanned(now, &pids, cpu);
            self.counts.scans += 1;
            self.counts.scanning += cpu;
            work = self.census.next(now);
        }
        let before = cpu_time_of_thread();
        work.read.iter().for_each(|&pid| self.read(now, pid));
        self.counts.reading += cpu_time_of_thread() - before;
        work
    }

    fn read(&mut self, now: Duration, pid: u32) {
        if self.reader.is_new_and_idle(pid) && self.census.put_off_idle(now, pid) {
            self.counts.put_off += 1;
            return;
        }
        self.counts.reads += 1;
        match self.reader.read(pid) {
            Ok(known) => {
                let is_large = known.code_bytes() >= LARGE;
                if is_large {
                    self.reader.owner(known.identity);
                }
                self.census.seen(now, &known.seen(is_large));
            }
            Err(_) => {
                self.counts.gone += 1;
                self.census.gone(pid);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.began.elapsed() + time;
        while self.began.elapsed() < until {
            let work = self.turn();
            let left = work.wake_at.min(until).saturating_sub(self.began.elapsed());
            let millis = PollTimeout::try_from(left.as_millis() + 1).unwrap();
            match self.connector.as_ref().filter(|_| work.listen) {
                Some(connector) => {
                    let fd = PollFd::new(connector.as_fd(), PollFlags::POLLIN);
                    poll(&mut [fd], millis).unwrap();
                }
                None => std::thread::sleep(left),
            }
        }
    }
}

/// Starts about 200 programs a second, one of ten of which lives for half a second.
fn start_programs(stop: &AtomicBool) -> u64 {
    let (began, mut started, mut children) = (Instant::now(), 0, Vec::<Child>::new());
    while !stop.load(Ordering::Relaxed) {
        while started < began.elapsed().as_millis() as u64 / 5 {
            let seconds = if started % 10 == 0 { "0.5" } else { "0" };
            children.push(Command::new("sleep").arg(seconds).spawn().unwrap());
            started += 1;
        }
        children.retain_mut(|child| child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    children.iter_mut().for_each(|child| drop(child.wait()));
    started
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
#[ignore = "it measures for 30 s"]
fn issue_33_census_costs() {
    let seconds = number("CENSUS_SECONDS", 30);
    let warm = number("CENSUS_WARM", 0);
    let sleeping =
        (0..number("CENSUS_SLEEPING", 2000)).map(|_| Command::new("sleep").arg("900").spawn().unwrap());
    let mut sleeping: Vec<Child> = sleeping.collect();
    let connector = (number("CENSUS_EVENTS", 1) == 1).then(|| Connector::open(Wanted::Programs).unwrap());
    let stop = AtomicBool::new(false);
    let (started, cpu, counts, known, resident) = std::thread::scope(|scope| {
        let starter = scope.spawn(|| start_programs(&stop));
        let mut daemon = Daemon::new(connector);
        let resident = || Process::OWN.read("statm").map(|text| text.escape_ascii().to_string()).unwrap();
        let (mut before, memory) = (cpu_time_of_thread(), resident());
        if warm > 0 {
            daemon.run(Duration::from_secs(warm));
            println!(
                "{:?} of CPU time in the first {warm} s: {:?}",
                cpu_time_of_thread() - before,
                daemon.counts
            );
            before = cpu_time_of_thread();
            daemon.counts = Counts::default();
        }
        daemon.run(Duration::from_secs(seconds));
        let cpu = cpu_time_of_thread() - before;
        stop.store(true, Ordering::Relaxed);
        let known = daemon.census.known();
        (starter.join().unwrap(), cpu, daemon.counts, known, (memory, resident()))
    });
    sleeping.iter_mut().for_each(|child| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let share = cpu.as_secs_f64() / seconds as f64 * 100.0;
    println!(
        "{cpu:?} of CPU time in {seconds} s: {share:.3} %; {started} started, {known} known; {counts:?}"
    );
    println!("statm before and after: {resident:?}");
    assert!(counts.reads > 0 && known >= sleeping.len());
}
