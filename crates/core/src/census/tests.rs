// SPDX-License-Identifier: Apache-2.0
//! A machine with a simulated clock, on which processes start and end, and its census.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A process of the machine.
#[derive(Clone, Copy, Debug)]
struct Living {
    since: Duration,
    size: Size,
    cpu: u64,
}

/// A machine whose census is taken.
struct Machine {
    now: Duration,
    living: BTreeMap<u32, Living>,
    census: Census,
    /// The events that the census has not heard of.
    pending: Vec<Event>,
    wake_at: Duration,
    scan_cost: Duration,
    /// All processes use CPU time.
    is_busy: bool,
    /// When processes were read, and which.
    reads: Vec<(Duration, u32)>,
    scans: Vec<Duration>,
}

impl Machine {
    fn new(settings: Settings, has_events: bool) -> Machine {
        Machine {
            now: ms(100),
            living: BTreeMap::new(),
            census: Census::new(settings, has_events),
            pending: Vec::new(),
            wake_at: ms(100),
            scan_cost: ms(1),
            is_busy: false,
            reads: Vec::new(),
            scans: Vec::new(),
        }
    }

    fn start(&mut self, pid: u32, size: Size) {
        self.living.insert(pid, Living { since: self.now, size, cpu: 0 });
        self.pending.push(Event::Executed(pid));
    }

    fn end(&mut self, pid: u32) {
        if self.living.remove(&pid).is_some() {
            self.pending.push(Event::Ended(pid));
        }
    }

    /// Lets time pass, with the turns of the census in it.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.wake_at <= until {
            self.now = self.now.max(self.wake_at);
            self.turn();
        }
        self.now = until;
    }

    fn turn(&mut self) {
        let has_events = self.census.scans.has_events();
        for event in self.pending.drain(..).filter(|_| has_events) {
            self.census.event(self.now, event);
        }
        let mut work = self.census.next(self.now);
        if work.scan {
            let pids: Vec<u32> = self.living.keys().copied().collect();
            self.census.scanned(self.now, &pids, self.scan_cost);
            self.scans.push(self.now);
            assert!(self.census.processes.keys().all(|pid| self.living.contains_key(pid)));
            work = self.census.next(self.now);
            assert!(!work.scan);
        }
        work.read.iter().for_each(|&pid| self.read(pid));
        assert!(work.wake_at > self.now);
        // An event ends a wait that listens; the machine here is busy enough.
        self.wake_at = if work.listen { work.wake_at.min(self.now + ms(250)) } else { work.wake_at };
        self.check();
    }

    fn read(&mut self, pid: u32) {
        self.reads.push((self.now, pid));
        match self.living.get(&pid) {
            Some(living) => {
                let start = living.since.as_millis() as u64;
                let cpu = if self.is_busy { self.now.as_millis() as u64 } else { living.cpu };
                self.census.seen(self.now, &Seen { identity: (pid, start), cpu, size: living.size });
            }
            None => self.census.gone(pid),
        }
    }

    /// Each process has one turn.
    fn check(&self) {
        assert_eq!(self.census.queue.len(), self.census.known());
    }

    /// Returns the most readings in any time of this length.
    fn most_readings(&self, within: Duration) -> usize {
        let count = |&(from, _): &(Duration, u32)| {
            self.reads.iter().filter(|(at, _)| *at >= from && *at < from + within).count()
        };
        self.reads.iter().map(count).max().unwrap_or(0)
    }

    fn read_at(&self, pid: u32) -> Vec<Duration> {
        self.reads.iter().filter(|(_, read)| *read == pid).map(|(at, _)| *at).collect()
    }
}

#[test]
fn issue_33_a_new_program_is_read_within_a_second_and_a_short_one_never() {
    for after in [0, 60, 120, 249] {
        let mut machine = Machine::new(Settings::default(), true);
        machine.run(5 * SECOND + ms(after));
        let began = machine.now;
        machine.start(7, Size::Large);
        machine.start(8, Size::Small);
        machine.run(ms(280));
        machine.end(8);
        machine.run(3 * SECOND);
        let reads = machine.read_at(7);
        assert!(reads[0] >= began + ms(300) && reads[0] <= began + SECOND, "{reads:?}");
        assert!(reads.len() >= 3 && reads.windows(2).all(|w| w[1] - w[0] <= ms(1250)), "{reads:?}");
        assert_eq!(machine.read_at(8), []);
    }
}

#[test]
fn issue_33_an_idle_process_is_put_off_once_after_each_exec() {
    let mut census = Census::new(Settings::default(), true);
    census.scanned(ms(0), &[], ms(1));
    census.next(ms(0));
    for began in [1000, 9000] {
        census.event(ms(began), Event::Executed(7));
        let read = |census: &mut Census, at| census.next(ms(began + at)).read;
        assert_eq!((read(&mut census, 299), read(&mut census, 300)), (vec![], vec![7]));
        assert!(census.put_off_idle(ms(began + 300), 7));
        assert_eq!((read(&mut census, 1299), read(&mut census, 1300)), (vec![], vec![7]));
        assert!(!census.put_off_idle(ms(began + 1300), 7));
    }
    census.gone(7);
    assert!(census.put_off_idle(ms(20_000), 7), "there is nothing to read");
}

#[test]
fn issue_33_without_events_a_scan_finds_new_programs() {
    let mut machine = Machine::new(Settings::default(), false);
    machine.run(5 * SECOND);
    let began = machine.now;
    machine.start(7, Size::Large);
    machine.run(2 * SECOND);
    assert!(machine.read_at(7)[0] <= began + ms(1500), "{:?}", machine.read_at(7));
    machine.end(7);
    machine.run(2 * SECOND);
    assert_eq!(machine.census.known(), 0);
    // With 10 ms for each, a scan is made each ten seconds.
    machine.scan_cost = ms(10);
    machine.run(2 * SECOND);
    machine.scans.clear();
    machine.run(60 * SECOND);
    assert!((5..=6).contains(&machine.scans.len()), "{:?}", machine.scans);
}

#[test]
fn issue_33_small_processes_that_sleep_are_read_rarely() {
    let mut machine = Machine::new(Settings::default(), true);
    (1..=3000).for_each(|pid| machine.start(pid, Size::Small));
    machine.pending.clear();
    machine.run(3600 * SECOND);
    machine.reads.clear();
    machine.run(600 * SECOND);
    assert!((2990..=3010).contains(&machine.reads.len()), "once in ten minutes: {}", machine.reads.len());
    // One that works again is seen to at its turn, and from then on each minute.
    machine.is_busy = true;
    machine.run(660 * SECOND);
    machine.reads.clear();
    machine.run(60 * SECOND);
    assert!((2990..=3010).contains(&machine.reads.len()), "{}", machine.reads.len());
}

#[test]
fn issue_33_small_processes_that_work_are_read_once_a_minute_and_evenly() {
    let mut machine = Machine::new(Settings::default(), true);
    machine.is_busy = true;
    (1..=3000).for_each(|pid| machine.start(pid, Size::Small));
    machine.pending.clear();
    machine.run(120 * SECOND);
    assert!((1..=3000).all(|pid| machine.census.identity(pid).is_some()));
    machine.reads.clear();
    machine.run(60 * SECOND);
    assert!((2990..=3010).contains(&machine.reads.len()), "{}", machine.reads.len());
    assert!(machine.most_readings(SECOND) <= 65, "{}", machine.most_readings(SECOND));
    // They do not keep a new program waiting, nor do those that were never read.
    (3001..=5000).for_each(|pid| machine.start(pid, Size::Small));
    machine.pending.clear();
    machine.run(31 * SECOND);
    let began = machine.now;
    machine.start(9000, Size::Large);
    machine.run(SECOND);
    assert!(!machine.read_at(9000).is_empty(), "{began:?}");
}

#[test]
fn issue_33_an_id_that_is_reused_is_another_process() {
    let mut machine = Machine::new(Settings::default(), false);
    machine.start(7, Size::Large);
    machine.run(SECOND);
    assert_eq!(machine.census.identity(7), Some((7, 100)));
    // It ends, and another one gets its id before the next scan.
    machine.living.insert(7, Living { since: machine.now, size: Size::Small, cpu: 30 });
    machine.run(2 * SECOND);
    assert_eq!(machine.census.identity(7), Some((7, 1100)));
}

#[test]
fn issue_33_what_is_beyond_the_limit_is_not_kept() {
    let mut machine = Machine::new(Settings { most: 10, ..Settings::default() }, true);
    (1..=15).for_each(|pid| machine.start(pid, Size::Small));
    machine.pending.clear();
    machine.run(SECOND);
    assert_eq!(machine.census.known(), 10);
    machine.start(16, Size::Small);
    machine.run(SECOND);
    assert!(machine.census.known() == 10 && !machine.census.knows(16));
    (1..=8).for_each(|pid| machine.end(pid));
    machine.run(31 * SECOND);
    assert!(machine.census.known() == 8 && machine.census.knows(16));
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start(u32, Size),
    /// A process with this place among those that live ends.
    End(usize),
    /// The events that are waiting get lost. The kernel says so, or not.
    Lose(bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![Just(Size::Small), Just(Size::Large), Just(Size::Kernel)];
    prop_oneof![
        4 => (1_u32..400, size).prop_map(|(pid, size)| Step::Start(pid, size)),
        3 => (0_usize..400).prop_map(Step::End),
        1 => any::<bool>().prop_map(Step::Lose),
        3 => (0_u64..3000).prop_map(Step::Wait),
    ]
}

impl Machine {
    fn act(&mut self, step: Step) {
        match step {
            Step::Start(pid, size) => {
                self.end(pid);
                self.start(pid, size);
            }
            Step::End(nth) => {
                if let Some(&pid) = self.living.keys().nth(nth % self.living.len().max(1)) {
                    self.end(pid);
                }
            }
            Step::Lose(told) => {
                self.pending.clear();
                self.pending.extend(told.then_some(Event::Lost));
            }
            Step::Wait(millis) => self.run(ms(millis)),
        }
    }
}

proptest! {
    /// Whatever happens and whatever events are lost, no process is unknown for longer than the time between two scans, one
    /// that has ended is forgotten with the next scan, and the readings are within the budget.
    #[test]
    fn issue_33_the_census_is_right_within_a_scan(
        steps in prop::collection::vec(step(), 1..150),
        has_events in any::<bool>(),
        readings in 1_u32..100,
    ) {
        let settings = Settings { readings, ..Settings::default() };
        let mut machine = Machine::new(settings, has_events);
        let rescan = if has_events { settings.scan_beside_events } else { settings.scan_every };
        let latest = rescan + 2 * settings.turn;
        for step in steps {
            machine.act(step);
            for (pid, living) in &machine.living {
                let known = machine.census.knows(*pid);
                prop_assert!(known || machine.now < living.since + latest, "{pid} at {:?}", machine.now);
            }
            // Who is known and does not live has ended after the last scan: see Machine::turn.
            prop_assert!(machine.census.known() <= 400);
        }
        let most = machine.most_readings(SECOND) as f64;
        prop_assert!(most <= f64::from(readings) + (f64::from(readings) / 2.0).max(1.0) + 1.0, "{most}");
        // In time each is read, too.
        machine.run(latest + Duration::from_secs(400 / u64::from(readings) * 2 + 5));
        for pid in machine.living.keys() {
            prop_assert!(machine.census.identity(*pid).is_some() || readings < 20, "{pid}");
        }
    }
}
