// SPDX-License-Identifier: Apache-2.0
//! The messages of the proc connector: the kernel says which processes were started and have ended (linux/cn_proc.h,
//! drivers/connector/cn_proc.c).
//!
//! A message is a header of netlink(7), one of the connector (linux/connector.h), and the event. All numbers are in the
//! byte order of the machine. The kernel puts one message into each datagram.

use std::collections::{BTreeMap, HashSet};

/// `CN_IDX_PROC`, which is the multicast group too, and `CN_VAL_PROC`: they name the proc connector.
pub const GROUP: u32 = 1;
const VALUE: u32 = 1;
/// Kinds of events: `PROC_EVENT_NONE` is the answer to a request.
pub const ANSWER: u32 = 0;
/// `PROC_EVENT_EXEC`
pub const EXEC: u32 = 2;
/// `PROC_EVENT_EXIT`
pub const EXIT: u32 = 0x8000_0000;

/// Where the kind of an event is in a message, in bytes.
pub const KIND_AT: usize = HEADERS;
/// Where the thread and the process are that have executed a program, or have ended.
pub const THREAD_AT: usize = HEADERS + 16;
/// See [`THREAD_AT`].
pub const PROCESS_AT: usize = THREAD_AT + 4;

/// Bytes of `struct nlmsghdr` and of `struct cn_msg` behind it.
const NETLINK: usize = 16;
const HEADERS: usize = NETLINK + 20;
/// The `nlmsg_type` of requests.
const NLMSG_DONE: u16 = 3;

/// What has happened to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The process executes another program now (execve(2)).
    Executed(u32),
    /// Its first thread has ended. As a rule the process has; others of its threads may run on.
    Ended(u32),
    /// Events are missing.
    Lost,
}

/// Removes the start of each process whose end is in the list too. Most programs that a machine starts end within a moment, and are
/// then of no interest to who reads the list late.
pub fn leave_out_short_lived(events: &mut Vec<Event>) {
    let mut ended = HashSet::new();
    let mut kept = Vec::with_capacity(events.len());
    // From the last on: what is after an end is of another process with the same id.
    for event in events.drain(..).rev() {
        match event {
            Event::Ended(pid) => _ = ended.insert(pid),
            Event::Executed(pid) if ended.contains(&pid) => continue,
            _ => {}
        }
        kept.push(event);
    }
    kept.reverse();
    *events = kept;
}

/// A message of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The CPU on which it happened.
    pub cpu: u32,
    /// The number of the message among those of this CPU.
    pub sequence: u32,
    /// What it says.
    pub content: Content,
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Something has happened to a process.
    Event(Event),
    /// The answer to a request of this or another process.
    Answer {
        /// The number of the request.
        number: u32,
        /// errno(3); 0 if it was granted.
        errno: u32,
    },
    /// Something has happened to a single thread, or it is a kind of event that does not matter here.
    Other,
}

/// A request to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Sends all kinds of events from now on (`PROC_CN_MCAST_LISTEN`).
    Listen,
    /// Sends only these kinds, one bit each (Linux 6.6). Older kernels ignore the request. Such a kernel does not send its
    /// answer, as that is none of the kinds.
    ListenTo(u32),
    /// Sends nothing any more (`PROC_CN_MCAST_IGNORE`).
    Ignore,
}

impl Request {
    /// Returns its bytes. `number` is any number by which the answer is told from those to others.
    pub fn bytes(self, number: u32) -> Vec<u8> {
        let words: &[u32] = match self {
            Request::Listen => &[1],
            Request::ListenTo(kinds) => &[1, kinds],
            Request::Ignore => &[2],
        };
        let payload = words.len() * 4;
        let mut bytes = ((HEADERS + payload) as u32).to_ne_bytes().to_vec();
        bytes.extend(NLMSG_DONE.to_ne_bytes());
        // No flags; number and sender, which the kernel does not look at.
        bytes.extend([0; NETLINK - 6]);
        [GROUP, VALUE, 0, number].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend((payload as u16).to_ne_bytes());
        bytes.extend([0; 2]);
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }
}

/// Parses the message in a datagram; returns `None` if it is none of the proc connector, or is cut off.
pub fn parse(datagram: &[u8]) -> Option<Message> {
    let length = usize::try_from(word(datagram, 0)?).ok()?;
    let message = datagram.get(..length)?;
    if (word(message, NETLINK)?, word(message, NETLINK + 4)?) != (GROUP, VALUE) {
        return None;
    }
    let content = match word(message, KIND_AT)? {
        // The kernel adds one to the number of the request.
        ANSWER => Content::Answer {
            number: word(message, NETLINK + 12)?.wrapping_sub(1),
            errno: word(message, THREAD_AT)?,
        },
        EXEC => event(message, Event::Executed)?,
        EXIT => event(message, Event::Ended)?,
        _ => Content::Other,
    };
    Some(Message { cpu: word(message, KIND_AT + 4)?, sequence: word(message, NETLINK + 8)?, content })
}

/// Returns the event of the thread in the message if it is the first of its process.
fn event(message: &[u8], of: impl FnOnce(u32) -> Event) -> Option<Content> {
    let (thread, process) = (word(message, THREAD_AT)?, word(message, PROCESS_AT)?);
    Some(if thread == process { Content::Event(of(process)) } else { Content::Other })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The numbers of the messages of each CPU. They are without gaps where no filter leaves messages out.
#[derive(Default, Debug)]
pub struct Sequences(BTreeMap<u32, u32>);

impl Sequences {
    /// Returns whether a message is missing between the last one of this CPU and this one.
    pub fn has_gap(&mut self, message: &Message) -> bool {
        if matches!(message.content, Content::Answer { .. }) {
            // Whether answers are counted depends on the version of the kernel.
            self.0.remove(&message.cpu);
            return false;
        }
        let last = self.0.insert(message.cpu, message.sequence);
        last.is_some_and(|last| last.wrapping_add(1) != message.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a message as Linux 6.18 sends it, with these words behind the time.
    fn message(kind: u32, sequence: u32, acknowledged: u32, words: &[u32]) -> Vec<u8> {
        let event = 40;
        let mut bytes = ((HEADERS + event) as u32).to_ne_bytes().to_vec();
        bytes.extend([3, 0, 0, 0]);
        bytes.extend([0; 8]);
        [1, 1, sequence, acknowledged].iter().for_each(|word: &u32| bytes.extend(word.to_ne_bytes()));
        bytes.extend([event as u8, 0, 0, 0]);
        [kind, 5].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(123_456_789_u64.to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.resize(HEADERS + event, 0);
        bytes
    }

    #[test]
    fn issue_33_a_program_that_has_ended_by_the_time_of_reading_was_never_started() {
        use Event::{Ended, Executed, Lost};
        let mut events = vec![
            Executed(1),
            Executed(2),
            Executed(2),
            Lost,
            Ended(2),
            Ended(3),
            // Another process has got the id of an earlier one.
            Executed(3),
            Ended(4),
        ];
        leave_out_short_lived(&mut events);
        assert_eq!(events, [Executed(1), Lost, Ended(2), Ended(3), Executed(3), Ended(4)]);
    }

    /// `PROC_EVENT_FORK`
    const FORK: u32 = 1;

    fn content(kind: u32, words: &[u32]) -> Content {
        parse(&message(kind, 7, 0, words)).unwrap().content
    }

    #[test]
    fn issue_33_events_of_processes_are_told_from_those_of_threads() {
        assert_eq!(content(EXEC, &[44, 44]), Content::Event(Event::Executed(44)));
        assert_eq!(content(EXIT, &[44, 44, 256, 17]), Content::Event(Event::Ended(44)));
        assert_eq!(content(EXIT, &[45, 44, 0, 17]), Content::Other);
        // PROC_EVENT_COMM
        assert_eq!(content(0x200, &[44, 44]), Content::Other);
        let answer = parse(&message(ANSWER, 1, 9, &[1])).unwrap();
        assert_eq!(answer.content, Content::Answer { number: 8, errno: 1 });
        assert_eq!((answer.cpu, answer.sequence), (5, 1));
    }

    #[test]
    fn issue_33_a_fork_that_an_older_kernel_tells_is_passed_over() {
        // Of a process, and of a thread.
        for words in [[45, 44, 50, 50], [44, 44, 51, 44]] {
            assert_eq!(content(FORK, &words), Content::Other);
        }
        // Its number counts among those of the other messages: nothing is missing.
        let mut sequences = Sequences::default();
        let gaps = [(EXEC, 3), (FORK, 4), (EXIT, 5)].map(|(kind, sequence)| {
            sequences.has_gap(&parse(&message(kind, sequence, 0, &[44, 44, 50, 50])).unwrap())
        });
        assert_eq!(gaps, [false; 3]);
    }

    #[test]
    fn issue_33_a_request_is_as_the_kernel_reads_it() {
        let bytes = Request::ListenTo(EXEC | EXIT).bytes(9);
        let words: Vec<u32> = (0..bytes.len() / 4).map(|i| word(&bytes, i * 4).unwrap()).collect();
        let type_and_flags = u32::from_ne_bytes([3, 0, 0, 0]);
        let payload = u32::from_ne_bytes([8, 0, 0, 0]);
        assert_eq!(words, [44, type_and_flags, 0, 0, 1, 1, 0, 9, payload, 1, 0x8000_0002]);
        assert_eq!([Request::Listen, Request::Ignore].map(|request| request.bytes(1)[36]), [1, 2]);
    }

    #[test]
    fn issue_33_what_is_cut_off_or_of_another_connector_is_nothing() {
        let whole = message(EXEC, 7, 0, &[44, 44]);
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), None, "{cut}");
        }
        let mut other = whole.clone();
        other[NETLINK] = 2;
        assert_eq!(parse(&other), None);
        // A length that is too small for its own header.
        let mut short = whole;
        short[0] = 12;
        assert_eq!(parse(&short), None);
    }

    #[test]
    fn issue_33_a_gap_in_the_numbers_of_a_cpu_is_seen() {
        let mut sequences = Sequences::default();
        let mut gap =
            |sequence, kind| sequences.has_gap(&parse(&message(kind, sequence, 0, &[44, 44])).unwrap());
        assert_eq!([3, 4, 5].map(|sequence| gap(sequence, EXEC)), [false; 3]);
        assert!(gap(7, EXIT));
        assert!(!gap(0, ANSWER));
        assert_eq!([u32::MAX, 0].map(|sequence| gap(sequence, EXEC)), [false; 2]);
    }

    proptest! {
        #[test]
        fn issue_33_no_message_hurts(bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..80) {
            let _ = parse(&bytes);
            let mut damaged = message(EXEC, 7, 0, &[44, 44]);
            damaged.splice(at.min(damaged.len()).., bytes);
            let _ = parse(&damaged);
        }
    }
}
