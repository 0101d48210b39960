// SPDX-License-Identifier: Apache-2.0
//! System calls in another process, without the command line: a small victim, which checks itself (`victim.c`), and a tracer,
//! which is this program once more. The tracer or the victim is killed at each step.

use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Prot;
use hugelift_core::target::{Place, Source, Target as _};
use hugelift_inject::live::{Left, Live};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::snapshot;
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The variable that makes this program a tracer: the process whose memory it changes.
const VICTIM: &str = "HUGELIFT_TEST_VICTIM";
/// The test that is the tracer then.
const TRACER: &str = "another_process_makes_our_calls";
/// Bytes that the tracer maps.
const LEN: u64 = 4 << 20;
/// The addresses from which on it does, up to twice this one.
const AREA: u64 = 1 << 37;
/// The longest time for anything.
const PATIENCE: Duration = Duration::from_secs(150);

/// A victim that runs.
struct Victim {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Victim {
    fn start() -> Victim {
        let mut child = Command::new(program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Victim { child, out }
    }

    fn process(&self) -> Process {
        Process::new(self.child.id())
    }

    /// Returns where the victim itself has mapped memory, and how many bytes a tracer has left.
    fn mapped(&self) -> (Vec<Range>, u64) {
        let all = self.process().maps().expect("its mappings").into_iter().map(|mapping| mapping.range);
        let (left, mapped): (Vec<Range>, Vec<Range>) =
            all.partition(|range| (AREA..AREA * 2).contains(&range.start.0));
        (mapped, left.iter().map(|range| range.len()).sum())
    }

    /// Has a tracer change it, which dies as `dies` says. Returns how the tracer has ended, and what it has said.
    fn traced(&self, dies: Option<&str>) -> (ExitStatus, String) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        // The only thread of this program makes the test: the timer of the tracer must interrupt no other one.
        command.args(["--exact", TRACER, "--test-threads=1", "--nocapture"]);
        command.env(VICTIM, self.child.id().to_string());
        if let Some(dies) = dies {
            command.env("HUGELIFT_TEST_DIE", dies);
        }
        let mut tracer =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tracer starts");
        let status = ended(&mut tracer);
        let mut said = String::new();
        tracer.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
        (status, said)
    }

    /// Ends it, and checks that nothing was wrong.
    #[track_caller]
    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = ended(&mut self.child);
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("UTF-8");
        assert_eq!((status.code(), rest.as_str()), (Some(0), "wrong 0\n"), "{status}");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the victim, which is compiled once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let (path, new) = (folder.join("victim"), folder.join(format!("victim-{}", std::process::id())));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/victim.c");
        let status = Command::new("cc").args(["-O1", source, "-o"]).arg(&new).status();
        assert!(status.is_ok_and(|status| status.success()), "cc cannot compile {source}");
        std::fs::rename(&new, &path).expect("it is renamed");
        path
    })
}

/// Waits for the end of a child, which must come.
#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{} does not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The work of a tracer: frees what an earlier one has left, asks the victim for its id, and maps memory in it for a moment.
fn change(pid: u32) {
    let before = snapshot::live(Some(pid), 0).expect("the victim is read");
    let mut live = Live::new(pid, &before.mappings, false).expect("it can be changed");
    live.free(&Left::find(pid, &before)).expect("what was left is unmapped");
    let id = live.borrow(|lent| lent.call(libc::SYS_getpid, [0; 6])).expect("a thread is lent");
    assert_eq!(id, i64::from(pid));
    let place = free_place(&before.mappings.iter().map(|mapping| mapping.range).collect::<Vec<_>>());
    live.mmap(place, Prot::RW, Source::Anonymous, Place::Free).expect("mmap");
    let prot = |range: Range| {
        let mappings = Process::new(pid).maps().expect("its mappings");
        mappings.iter().find(|mapping| mapping.range.covers(range)).map(|mapping| mapping.prot)
    };
    assert_eq!((live.scratch().all(), prot(place)), (&[place][..], Some(Prot::RW)));
    live.populate(place, before.machine.base_page).expect("populate");
    live.mprotect(place, Prot::R).expect("mprotect");
    assert_eq!(prot(place), Some(Prot::R));
    live.release(place).expect("munmap");
    assert_eq!((live.scratch().all(), prot(place)), (&[][..], None));
    assert!(live.stops().count > 0);
}

/// Returns addresses that are free, far from what the victim itself has mapped.
fn free_place(mapped: &[Range]) -> Range {
    let mut places = (0..).filter_map(|n| Range::sized(Addr(AREA + n * 2 * LEN), LEN));
    places.find(|place| mapped.iter().all(|range| range.intersect(*place).is_none())).expect("a place")
}

/// This is the tracer, too: then another test has started this program.
#[test]
fn another_process_makes_our_calls() {
    if let Ok(pid) = std::env::var(VICTIM) {
        return change(pid.parse().expect("a process id"));
    }
    let victim = Victim::start();
    let before = victim.mapped();
    assert_eq!(before.1, 0);
    for _ in 0..20 {
        let (status, said) = victim.traced(None);
        assert!(status.success(), "{said}");
    }
    assert_eq!(victim.mapped(), before);
    victim.end();
}

/// The victim goes on by itself, and the next tracer frees what is left.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "fault points are in debug builds alone")]
fn a_tracer_may_be_killed_at_each_step() {
    let mut steps = 0;
    let (mut is_over, mut left_in_all) = (false, 0);
    while !is_over {
        let victim = Victim::start();
        let (before, _) = victim.mapped();
        // Each leaves its code where a thread may still execute it, and a small program has few places for it.
        for _ in 0..8 {
            let (status, said) = victim.traced(Some(&format!("{steps}:helper")));
            is_over = status.success();
            if is_over {
                break;
            }
            assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{steps}: {said}");
            steps += 1;
        }
        let (status, said) = victim.traced(None);
        assert!(status.success(), "{steps}: {said}");
        let (mapped, left) = victim.mapped();
        assert_eq!(mapped, before, "{steps}");
        left_in_all += left;
        victim.end();
    }
    // Some steps leave memory: those of the madvise(2) that shows whose it is, and of munmap(2), as it is no longer claimed then.
    // Each call has about twenty, half of them before the call is made.
    println!("{steps} steps, {} of which leave memory", left_in_all / LEN);
    assert!(steps > 60 && left_in_all <= 48 * LEN, "{steps} steps, {left_in_all} bytes are left");
}

/// The tracer says that the victim is gone, and waits for nothing.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "fault points are in debug builds alone")]
fn a_victim_may_be_killed_at_each_step() {
    for step in 0.. {
        let victim = Victim::start();
        let (status, said) = victim.traced(Some(&format!("{step}:target")));
        if status.success() {
            assert!(step > 60, "{step} steps");
            return victim.end();
        }
        assert_eq!(status.signal(), None, "{step}: {said}");
        assert!(said.contains("panicked at"), "{step}: {said}");
        // The tracer may know of the kill before the victim has ended.
        let mut victim = victim;
        assert_eq!(ended(&mut victim.child).signal(), Some(Signal::SIGKILL as i32), "{step}: {said}");
    }
}
