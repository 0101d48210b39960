// SPDX-License-Identifier: Apache-2.0
//! The full screen. A thread reads /proc, so that keys never wait for it. However it ends (key,
//! signal, error, panic), the terminal gets its old state back.

use super::draw::draw;
use super::view::{Action, Map, View};
use crate::failure::Failure;
use crate::inspect;
use hugelift_core::policy::Policy;
use hugelift_heat::many::Many;
use hugelift_lift::text::{Style, text};
use hugelift_linux::io::file_limit::raise_file_limit;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::procfs::ProcError;
use hugelift_measure::processes::reader::Processes;
use hugelift_measure::processes::{Reading, Sample};
use nix::poll::{PollFd, PollFlags, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::style;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd as _;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Signals that end it.
const END_SIGNALS: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];
/// How long a signal or a new reading waits at most.
const TICK: Duration = Duration::from_millis(100);
/// How often the terminal is asked whether it is there, in milliseconds.
const CHECK: u16 = 500;
/// How long the session may take to end by itself when its terminal is gone.
const GRACE: Duration = Duration::from_secs(1);
/// The first interval, which is short: until then the table is empty.
const FIRST: Duration = Duration::from_millis(300);

/// Reading the coverage takes at most this part of the interval: a quarter.
const SHARE: u32 = 4;

/// Reads once an interval, and shows as many processes as the screen holds; reads the coverage of `number` at a time. Runs
/// until the user quits.
///
/// # Errors
/// There is no terminal, or `/proc` cannot be read.
pub fn live(interval: Duration, number: usize, colour: bool) -> Result<(), Failure> {
    #[allow(clippy::disallowed_methods, reason = "asks about the terminal, and writes nothing")]
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err("top needs a terminal; for scripts: hugelift top --once [--json]".into());
    }
    let failed = |e: io::Error| format!("cannot use the terminal: {e}");
    let signal = Arc::new(AtomicUsize::new(0));
    for number in END_SIGNALS {
        // The second signal ends the process at once, in case it hangs.
        let again = Arc::new(AtomicBool::new(false));
        flag::register_conditional_default(number, Arc::clone(&again)).map_err(failed)?;
        flag::register(number, again).map_err(failed)?;
        flag::register_usize(number, Arc::clone(&signal), number.unsigned_abs() as usize).map_err(failed)?;
    }
    end_with_terminal(&signal);
    let on_screen = Arc::new(Mutex::new(Vec::new()));
    let readings = read_on(interval, number, Arc::clone(&on_screen));
    // After a panic, the hook of `try_init` restores the screen and its settings, then this hook
    // shows the cursor.
    let then = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        #[allow(clippy::disallowed_methods, reason = "nothing from outside is in it")]
        let _ = execute!(io::stdout(), Show);
        then(info);
    }));
    // The colours are decided already: without this, NO_COLOR would count against --color always.
    style::force_color_output(true);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut view = View::new(interval, colour);
    view.is_root = nix::unistd::geteuid().is_root();
    let ended = session(&mut terminal, view, &readings, &on_screen, &signal);
    drop(terminal);
    ratatui::restore();
    let number = i32::try_from(signal.load(Ordering::Relaxed)).unwrap_or(0);
    if number != 0 {
        // Ends the process as the signal would have; returns only if that fails.
        let _ = low_level::emulate_default_handler(number);
    }
    ended
}

/// Ends the process, as SIGHUP or the signal that came would, when its terminal is gone and the session has not seen that in time:
/// a read of a terminal that has hung up returns nothing at once, and the library that reads the keys goes on reading.
fn end_with_terminal(signal: &Arc<AtomicUsize>) {
    let signal = Arc::clone(signal);
    std::thread::spawn(move || {
        let stdin = io::stdin();
        let is_gone = || {
            let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
            let hung_up = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
            poll(&mut fds, CHECK).is_ok() && fds[0].revents().is_some_and(|events| events.intersects(hung_up))
        };
        while !is_gone() {}
        std::thread::sleep(GRACE);
        let number = i32::try_from(signal.load(Ordering::Relaxed)).unwrap_or(0);
        let _ = low_level::emulate_default_handler(if number == 0 { SIGHUP } else { number });
    });
}

/// The processes that the user sees: their coverage is read before that of others.
type OnScreen = Mutex<Vec<u32>>;

/// Starts a thread that reads once an interval, until the receiver is dropped.
fn read_on(
    interval: Duration,
    number: usize,
    on_screen: Arc<OnScreen>,
) -> Receiver<Result<Reading, ProcError>> {
    let (send, receive) = sync_channel(1);
    std::thread::spawn(move || {
        let mut processes = Processes::new();
        raise_file_limit();
        let (mut many, page) = (Many::new(interval), base_page().bytes());
        let mut pause = FIRST.min(interval);
        loop {
            let first = on_screen.lock().map(|pids| pids.clone()).unwrap_or_default();
            let mut reading = processes.read(&first, number.max(first.len()), interval / SHARE);
            if let Ok(reading) = &mut reading {
                sample(&mut many, reading, &first, page);
            }
            if send.send(reading).is_err() {
                return;
            }
            std::thread::sleep(pause);
            pause = interval;
        }
    });
    receive
}

/// Adds the code in use of the processes on the screen.
fn sample(many: &mut Many, reading: &mut Reading, on_screen: &[u32], page: u64) {
    let is_seen = |sample: &&Sample| on_screen.contains(&sample.stat.pid);
    let seen = reading.samples.iter().filter(is_seen);
    many.read(&seen.map(|sample| (sample.stat.identity(), sample.stat.cpu)).collect::<Vec<_>>());
    for sample in &mut reading.samples {
        let pages = many.pages(sample.stat.identity());
        sample.code_in_use = pages.map(|pages| pages.estimate.saturating_mul(page));
    }
    reading.no_samples = many.refusal().map(String::from);
}

fn session(
    terminal: &mut DefaultTerminal,
    mut view: View,
    readings: &Receiver<Result<Reading, ProcError>>,
    on_screen: &OnScreen,
    signal: &AtomicUsize,
) -> Result<(), Failure> {
    let failed = |e: io::Error| format!("cannot use the terminal: {e}");
    let mut changed = true;
    while signal.load(Ordering::Relaxed) == 0 {
        match readings.try_recv() {
            Ok(reading) => {
                view.take(reading?);
                if let Some(map) = &mut view.map {
                    map.update(read_map(map.pid, terminal));
                }
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err("the thread that reads /proc has ended".into()),
        }
        if changed {
            terminal.draw(|frame| draw(frame, &mut view)).map_err(failed)?;
            if let Ok(mut pids) = on_screen.lock() {
                *pids = view.on_screen();
            }
            // For the tests: a panic must restore the terminal too.
            #[cfg(debug_assertions)]
            assert!(std::env::var_os("HUGELIFT_TEST_PANIC").is_none(), "a panic, as asked for");
        }
        changed = event::poll(TICK).map_err(failed)?;
        if !changed {
            continue;
        }
        // After a change of the window's size it is only drawn again.
        let Event::Key(key) = event::read().map_err(failed)? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match view.key(key) {
            Action::Draw => {}
            Action::Open(pid) => view.map = Some(Map::new(pid, read_map(pid, terminal))),
            Action::Suspend => suspend(terminal).map_err(failed)?,
            Action::Quit => return Ok(()),
        }
    }
    Ok(())
}

/// Returns what `hugelift inspect PID` prints.
fn read_map(pid: u32, terminal: &DefaultTerminal) -> Result<String, Failure> {
    let width = terminal.size().map_or(80, |size| usize::from(size.width));
    let report = inspect::of_process(pid, &Policy::default())?;
    Ok(text(&report, &Style { width, verbose: false }))
}

/// Restores the terminal and stops the process; continues when the shell sends SIGCONT.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    ratatui::try_restore()?;
    terminal.show_cursor()?;
    low_level::raise(SIGSTOP)?;
    *terminal = ratatui::try_init()?;
    Ok(())
}
