// SPDX-License-Identifier: Apache-2.0
//! `/proc/PID/stat` (proc_pid_stat(5)) and `/proc/PID/statm` (proc_pid_statm(5)).

use crate::maps::decimal;
use crate::printable::Untrusted;

/// Workers of io_uring (Linux 5.12), and all workers that the kernel has cloned from a process (Linux 6.4): flags of a thread
/// (include/linux/sched.h).
const PF_IO_WORKER: u64 = 0x10;
const PF_USER_WORKER: u64 = 0x4000;
/// A thread of the kernel, which belongs to no program: a flag as well.
const PF_KTHREAD: u64 = 0x20_0000;

/// What distinguishes a process from all others: its id, and when it was started, as ids are reused.
pub type Identity = (u32, u64);

/// What `/proc/PID/stat` says of a process or thread.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its id.
    pub pid: u32,
    /// Its name, of 15 bytes at most; what is not UTF-8 is replaced.
    pub comm: Untrusted,
    /// `R`, `S`, `Z`...
    pub state: char,
    /// The process that started it, or the one that adopted it since.
    pub parent: u32,
    /// Whether it is a thread of the kernel's that works for the process, as for io_uring or vhost. Such a thread is listed among
    /// the threads of the process, and never executes its code.
    pub is_kernel_worker: bool,
    /// Whether it is a thread of the kernel that works for no process, and has no memory of its own.
    pub is_kernel_thread: bool,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// The minor faults of the children that it has waited for.
    pub minor_faults_of_children: u64,
    /// Page faults that needed a disk.
    pub major_faults: u64,
    /// The major faults of the children that it has waited for.
    pub major_faults_of_children: u64,
    /// CPU time of all its threads, user and system, in clock ticks.
    pub cpu: u64,
    /// The CPU time of the children that it has waited for.
    pub cpu_of_children: u64,
    /// How many threads the process has, with a first one that has ended.
    pub threads: u64,
    /// When it was started, in clock ticks since boot.
    pub start: u64,
    /// Size of its address space in bytes: 0 for kernel threads and zombies.
    pub virtual_bytes: u64,
    /// The addresses that the kernel keeps; `None` if it hides them from this user, and in a process
    /// without memory.
    pub addresses: Option<Addresses>,
}

/// The addresses that the kernel keeps of a process, by its own names.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Addresses {
    pub start_code: u64,
    pub end_code: u64,
    pub start_stack: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
}

impl Stat {
    /// Returns what distinguishes it from another process that gets its id later.
    pub fn identity(&self) -> Identity {
        (self.pid, self.start)
    }

    /// Returns whether it is of this process, and the process has not ended.
    pub fn is_alive(&self, identity: Identity) -> bool {
        self.identity() == identity && !self.has_ended()
    }

    /// Returns whether the process, of which this is the first thread, is a zombie or dead.
    pub fn has_ended(&self) -> bool {
        self.thread_has_ended() && self.threads <= 1
    }

    /// Returns whether the process is in exit(2): it has no memory any more, and is no zombie yet.
    pub fn is_exiting(&self) -> bool {
        self.virtual_bytes == 0 && !self.thread_has_ended() && !self.is_kernel_thread
    }

    /// Returns whether it is of this process, which lives and does not end at this moment. A process that ends gives
    /// back its memory and its counters first, and may be there without them for long on a busy machine.
    pub fn is_whole(&self, identity: Identity) -> bool {
        self.is_alive(identity) && !self.is_exiting() && !self.is_kernel_thread
    }

    /// Returns whether the thread is a zombie or dead. The first thread of a process stays so until all have ended.
    pub fn thread_has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The fields behind the name, numbered as in proc_pid_stat(5). They are read in this order, once.
struct Fields<I> {
    words: I,
    next: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Fields<I> {
    fn word(&mut self, number: usize) -> Option<&'a [u8]> {
        let skipped = number.checked_sub(self.next)?;
        self.next = number + 1;
        self.words.nth(skipped)
    }

    fn number(&mut self, number: usize) -> Option<u64> {
        decimal(self.word(number)?)
    }

    fn addresses(&mut self) -> Option<Addresses> {
        let addresses = Addresses {
            start_code: self.number(26)?,
            end_code: self.number(27)?,
            start_stack: self.number(28)?,
            start_data: self.number(45)?,
            end_data: self.number(46)?,
            start_brk: self.number(47)?,
            arg_start: self.number(48)?,
            arg_end: self.number(49)?,
            env_start: self.number(50)?,
            env_end: self.number(51)?,
        };
        // The kernel writes 1 for a hidden address of code, and 0 for all others.
        (addresses.start_code != 0 && addresses.start_brk != 0).then_some(addresses)
    }
}

/// Parses `/proc/PID/stat` or `/proc/PID/task/TID/stat`; returns `None` if it is not as
/// proc_pid_stat(5) says.
pub fn parse_stat(line: &[u8]) -> Option<Stat> {
    // The name is in brackets, and can hold any byte, including brackets and newlines.
    let open = line.iter().position(|&b| b == b'(')?;
    let close = line.iter().rposition(|&b| b == b')').filter(|close| *close > open)?;
    let pid = decimal(line[..open].trim_ascii())?.try_into().ok()?;
    let comm = Untrusted::from(&line[open + 1..close]);
    let words = line[close + 1..].trim_ascii().split(|&b| b == b' ');
    let mut fields = Fields { words, next: 3 };
    let state = char::from(*fields.word(3)?.first()?);
    let parent = fields.number(4)?.try_into().ok()?;
    let flags = fields.number(9)?;
    // The fields of an expression are evaluated as they are written.
    Some(Stat {
        pid,
        comm,
        state,
        parent,
        is_kernel_worker: flags & (PF_IO_WORKER | PF_USER_WORKER) != 0,
        is_kernel_thread: flags & PF_KTHREAD != 0,
        minor_faults: fields.number(10)?,
        minor_faults_of_children: fields.number(11)?,
        major_faults: fields.number(12)?,
        major_faults_of_children: fields.number(13)?,
        cpu: fields.number(14)?.saturating_add(fields.number(15)?),
        cpu_of_children: fields.number(16)?.saturating_add(fields.number(17)?),
        threads: fields.number(20)?,
        start: fields.number(22)?,
        virtual_bytes: fields.number(23)?,
        addresses: fields.addresses(),
    })
}

/// Returns the CPU on which a process or thread runs or ran last, from the same text as [`parse_stat`].
pub fn parse_last_cpu(line: &[u8]) -> Option<u32> {
    const PROCESSOR: usize = 39;
    const FIRST: usize = 3;
    let close = line.iter().rposition(|&b| b == b')')?;
    let mut words = line[close + 1..].trim_ascii().split(|&b| b == b' ');
    decimal(words.nth(PROCESSOR - FIRST)?)?.try_into().ok()
}

/// Returns the pages of code in the executable, from the one line of `/proc/PID/statm`.
pub fn parse_statm_text(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REAL: &str = "4242 (a) (b\n) S 7 4242 4242 0 -1 4194560 1500 90 7 2 130 20 5 6 20 0 3 0 881 \
        1234567168 2500 18446744073709551615 94349 94350 94351 0 0 0 0 16781312 134234626 0 0 0 17 1 0 0 0 0 0 \
        94352 94353 94354 94355 94356 94357 94358 0\n";

    #[test]
    fn a_line_with_a_name_that_looks_like_fields() {
        let addresses = Addresses {
            start_code: 94349,
            end_code: 94350,
            start_stack: 94351,
            start_data: 94352,
            end_data: 94353,
            start_brk: 94354,
            arg_start: 94355,
            arg_end: 94356,
            env_start: 94357,
            env_end: 94358,
        };
        let want = Stat {
            pid: 4242,
            comm: Untrusted::from(&b"a) (b\n"[..]),
            state: 'S',
            parent: 7,
            minor_faults: 1500,
            minor_faults_of_children: 90,
            major_faults: 7,
            major_faults_of_children: 2,
            cpu: 150,
            cpu_of_children: 11,
            threads: 3,
            is_kernel_worker: false,
            is_kernel_thread: false,
            start: 881,
            virtual_bytes: 1234567168,
            addresses: Some(addresses),
        };
        assert_eq!(parse_stat(REAL.as_bytes()), Some(want));
        assert_eq!(parse_last_cpu(REAL.as_bytes()), Some(1));
        assert_eq!(parse_statm_text(b"8371 1009 811 66 0 412 0\n"), Some(66));
    }

    #[test]
    fn a_thread_of_the_kernel_is_known_by_its_flags() {
        // Of io_uring on Linux 6.18, of vhost, of a program, and of kthreadd.
        for (flags, is) in [
            ("4210768", (true, false)),
            ("4210752", (true, false)),
            ("4194304", (false, false)),
            ("2129984", (false, true)),
        ] {
            let stat = parse_stat(REAL.replace(" 4194560 ", &format!(" {flags} ")).as_bytes()).unwrap();
            assert_eq!((stat.is_kernel_worker, stat.is_kernel_thread), is, "{flags}");
        }
    }

    #[test]
    fn hidden_addresses_are_none() {
        let hidden = REAL.replace("94349 94350 94351", "1 1 0").replace(" 94354 ", " 0 ");
        let stat = parse_stat(hidden.as_bytes()).unwrap();
        assert_eq!((stat.start, stat.addresses), (881, None));
    }

    #[test]
    fn what_is_cut_short_is_nothing() {
        for cut in 0..REAL.find("1234567168").unwrap() {
            assert_eq!(parse_stat(&REAL.as_bytes()[..cut]), None, "{cut}");
        }
        for cut in 0..REAL.find("94358").unwrap() {
            assert_eq!(parse_stat(&REAL.as_bytes()[..cut]).and_then(|stat| stat.addresses), None, "{cut}");
        }
        for bad in ["", "9 (a", "9 (a) S", "9 (a) S x", "9 (a)S 7"] {
            assert_eq!((parse_stat(bad.as_bytes()), parse_last_cpu(bad.as_bytes())), (None, None), "{bad}");
        }
        assert_eq!(parse_statm_text(b"1 2 3"), None);
    }

    #[test]
    fn zombies_and_the_dead_have_ended() {
        let of = |state, threads| {
            let line =
                REAL.replace(" S ", state).replace(" 20 0 3 0 881 ", &format!(" 20 0 {threads} 0 881 "));
            let stat = parse_stat(line.as_bytes()).unwrap();
            (stat.thread_has_ended(), stat.has_ended())
        };
        let ended = |state| of(state, 1);
        assert_eq!([" Z ", " X "].map(ended), [(true, true); 2]);
        assert_eq!([" R ", " t "].map(ended), [(false, false); 2]);
        assert_eq!(of(" Z ", 2), (true, false), "other threads run on");
        // exit_mm() comes before the process is a zombie (do_exit() in kernel/exit.c).
        let exiting = |from, to| parse_stat(REAL.replace(from, to).as_bytes()).unwrap().is_exiting();
        assert!(exiting("1234567168", "0") && !exiting("x", "x"));
        let of_kernel = REAL.replace(" 4194560 ", " 2129984 ").replace("1234567168", "0");
        let of_kernel = parse_stat(of_kernel.as_bytes()).unwrap();
        assert!(!of_kernel.is_exiting() && !of_kernel.is_whole(of_kernel.identity()));
        let whole = |from, to| {
            let stat = parse_stat(REAL.replace(from, to).as_bytes()).unwrap();
            [0, 1].map(|later| stat.is_whole((stat.pid, stat.start + later)))
        };
        assert_eq!((whole("x", "x"), whole("1234567168", "0")), ([true, false], [false, false]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..400) {
            let _ = parse_stat(&bytes);
            let _ = parse_last_cpu(&bytes);
            let _ = parse_statm_text(&bytes);
            let mut damaged = REAL.as_bytes().to_vec();
            let at = at.min(damaged.len());
            damaged.splice(at.., bytes);
            let _ = parse_stat(&damaged);
        }
    }
}
