// SPDX-License-Identifier: Apache-2.0
//! The connector with real processes. Others start and end beside; their events do not matter.

use super::*;
use std::process::{Child, Command, Stdio};

const PATIENCE: Duration = Duration::from_secs(30);

/// Opens a connector, or says why that is not possible here.
fn open(with_filter: bool) -> Option<Connector> {
    match Connector::begin(with_filter) {
        Ok(connector) => Some(connector),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

/// Reads events until `is_enough` says that all have come, or panics.
fn wait_for(connector: &mut Connector, mut is_enough: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let (began, mut events) = (Instant::now(), Vec::new());
    while !is_enough(&events) {
        let left = PATIENCE.checked_sub(began.elapsed()).expect("the events come in time");
        connector.wait(left).unwrap();
        connector.read(&mut events).unwrap();
    }
    events
}

fn start(program: &str, arguments: &[&str]) -> Child {
    Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn issue_33_a_program_is_seen_to_start_and_to_end() {
    // Without the filters the kernel tells of forks, too, as an older one does.
    for with_filter in [true, false] {
        let Some(mut connector) = open(with_filter) else { return };
        let mut child = start("cat", &[]);
        let pid = child.id();
        wait_for(&mut connector, |events| events.contains(&Event::Executed(pid)));
        drop(child.stdin.take());
        child.wait().unwrap();
        wait_for(&mut connector, |events| events.contains(&Event::Ended(pid)));
    }
}

#[test]
fn issue_33_threads_are_left_out() {
    let Some(mut connector) = open(true) else { return };
    let tids: Vec<u32> = (0..50)
        .map(|_| std::thread::spawn(|| nix::unistd::gettid().as_raw().cast_unsigned()).join().unwrap())
        .collect();
    let mut child = start("cat", &[]);
    let pid = child.id();
    drop(child.stdin.take());
    child.wait().unwrap();
    let events = wait_for(&mut connector, |events| events.contains(&Event::Ended(pid)));
    let is_thread = |event: &Event| match *event {
        Event::Executed(id) | Event::Ended(id) => tids.contains(&id),
        Event::Lost => false,
    };
    assert!(!events.iter().any(is_thread), "{events:?}");
}

#[test]
fn issue_33_three_hundred_children_are_all_seen() {
    let Some(mut connector) = open(true) else { return };
    let loops = "for i in $(seq 300); do /bin/true & echo $!; wait $!; done";
    let mut shell = Command::new("sh").args(["-c", loops]).stdout(Stdio::piped()).spawn().unwrap();
    let (said, last) = (shell.stdout.take().unwrap(), Event::Ended(shell.id()));
    let (text, events) = std::thread::scope(|scope| {
        // The events are read all the time, as others start processes as well.
        let text = scope.spawn(|| {
            let text = std::io::read_to_string(said).unwrap();
            shell.wait().unwrap();
            text
        });
        let events = wait_for(&mut connector, |events| events.contains(&last));
        (text.join().unwrap(), events)
    });
    let pids: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    if events.contains(&Event::Lost) {
        return println!("SKIP: the machine starts too many processes: events were lost");
    }
    assert_eq!(pids.len(), 300);
    for pid in pids {
        assert!(events.contains(&Event::Executed(pid)) && events.contains(&Event::Ended(pid)), "{pid}");
    }
}

#[test]
fn issue_33_what_does_not_fit_is_lost_and_the_kernel_says_so() {
    let Some(mut connector) = open(true) else { return };
    // The kernel's least: a few messages.
    setsockopt(&connector, sockopt::RcvBuf, &1).unwrap();
    let run = || {
        let mut children: Vec<Child> = (0..40).map(|_| start("true", &[])).collect();
        children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
    };
    run();
    let mut events = Vec::new();
    while connector.read(&mut events).unwrap() == Taken::Part {}
    assert!(events.contains(&Event::Lost), "{events:?}");
    // It goes on.
    let mut child = start("cat", &[]);
    let pid = child.id();
    wait_for(&mut connector, |events| {
        events.contains(&Event::Executed(pid)) || events.contains(&Event::Lost)
    });
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn issue_33_a_message_of_another_process_is_not_taken() {
    let Some(mut connector) = open(true) else { return };
    let address = nix::sys::socket::getsockname::<NetlinkAddr>(connector.socket.as_raw_fd()).unwrap();
    let forger = open_socket().unwrap();
    // An exec of process 77, as the kernel would say it.
    let mut forged = 76_u32.to_ne_bytes().to_vec();
    forged.extend([3, 0, 0, 0]);
    forged.extend([0; 8]);
    [1_u32, 1, 0, 0, 40, EXEC, 0, 0, 0, 77, 77].iter().for_each(|word| forged.extend(word.to_ne_bytes()));
    forged.resize(76, 0);
    assert_eq!(parse(&forged).unwrap().content, Content::Event(Event::Executed(77)));
    let sent = nix::sys::socket::sendto(forger.as_raw_fd(), &forged, &address, MsgFlags::empty());
    assert_eq!(sent, Ok(76));
    let mut child = start("cat", &[]);
    drop(child.stdin.take());
    child.wait().unwrap();
    let last = Event::Ended(child.id());
    let events = wait_for(&mut connector, |events| events.contains(&last));
    assert!(!events.contains(&Event::Executed(77)), "{events:?}");
}

#[test]
fn issue_33_another_namespace_is_refused_in_time() {
    let refused = std::thread::spawn(|| {
        // Of this thread alone.
        let moved = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        moved.map(|()| Connector::open().map(drop))
    });
    match refused.join().unwrap() {
        Err(errno) => println!("SKIP: unshare(2): {errno}"),
        Ok(opened) => {
            let error = opened.unwrap_err();
            assert_eq!(error, NoEvents::Unanswered);
            assert!(!error.to_string().contains('\n'));
        }
    }
}
