// SPDX-License-Identifier: Apache-2.0
//! Memory of Python programs is collapsed, as far as this machine allows it.

use super::turn::MAX_SHORT;
use super::*;
use hugelift_linux::machine::sysfs::{self, ThpMode};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const MB: u64 = 1 << 20;
const PARTS: [Part; 3] = [Part::Anon, Part::Heap, Part::Bss];

/// A Python program that says where its memory is and what is in it.
struct Python {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Python {
    /// Starts `program`, which defines `at`, `length` and `checksum()`; `None` without Python.
    fn start(program: &str) -> Option<(Python, Range)> {
        const BEFORE: &str = "import ctypes, mmap, sys, zlib\n\
            def anonymous(n):\n  \
              return mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
            def where(buffer):\n  \
              return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))\n";
        const AFTER: &str = "\nfor _ in range(1000):\n  \
              print(at, length, checksum(), flush=True)\n  \
              if not sys.stdin.readline(): break\n";
        let mut command = Command::new("python3");
        command.arg("-c").arg(format!("{BEFORE}{program}{AFTER}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut python = Python { says: BufReader::new(child.stdout.take()?), child };
        let said = python.said();
        let [at, length, _] = said[..] else { panic!("{said:?}") };
        Some((python, Range::sized(Addr(at), length).unwrap()))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    /// Asks for its checksum.
    fn sum(&mut self) -> u64 {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.said()[2]
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what came of it; `None` if this machine does not allow it.
fn collapsed(pid: u32, budget: Budget) -> Option<Collapsed> {
    match collapse(pid, &PARTS, &[], &budget) {
        Ok(collapsed) => {
            println!("{collapsed}");
            Some(collapsed)
        }
        Err(refused @ (Refused::NoPages | Refused::Denied { .. } | Refused::TooOld(_))) => {
            println!("SKIP: {refused}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn huge(pid: u32, range: Range) -> u64 {
    let inner = range.inner(thp_page().unwrap()).unwrap();
    pagemap::huge_bytes_at_least(pid.cast_signed(), inner).unwrap()
}

const PLENTY: Budget = Budget { cpu: Duration::from_secs(60), added: 64 * MB, spare: 0 };

#[test]
fn a_bytearray_becomes_huge_and_keeps_its_bytes() {
    let program = "b = bytearray(bytes(range(256)) * (100 << 12))\n\
        at, length = where(b), len(b)\n\
        def checksum(): return zlib.crc32(b)";
    let Some((mut python, range)) = Python::start(program) else { return println!("SKIP: no python3") };
    let sum = python.sum();
    let Some(done) = collapsed(python.pid(), PLENTY) else { return };
    let inner = range.inner(thp_page().unwrap()).unwrap();
    assert_eq!(huge(python.pid(), range), inner.len(), "{done}");
    assert!(done.huge <= done.tried && done.cpu > Duration::ZERO, "{done:?}");
    assert_eq!(python.sum(), sum);
    // The second time nothing of it is left to do.
    let again = collapsed(python.pid(), PLENTY).unwrap();
    assert!(again.left_by_reason()[&Why::Huge].0 >= inner.len(), "{again}");
}

#[test]
fn without_a_scan_smaps_shows_what_became_huge() {
    let program = "b = bytearray(bytes(range(256)) * (40 << 12))\n\
        at, length = where(b), len(b)\n\
        def checksum(): return zlib.crc32(b)";
    let Some((mut python, range)) = Python::start(program) else { return println!("SKIP: no python3") };
    let sum = python.sum();
    let program = Program::open(python.pid()).unwrap();
    if let Err(refused) = permitted(&program) {
        return println!("SKIP: {refused}");
    }
    let snapshot = snapshot::live(Some(python.pid()), 0).unwrap();
    let mut work = Work::new(&program, &snapshot, &PARTS).unwrap();
    work.present.scans = false;
    let how = &mut |block| from_outside(&program, block);
    let done = work.collapse(&PLENTY, how).unwrap();
    let inner = range.inner(thp_page().unwrap()).unwrap();
    assert_eq!(huge(python.pid(), range), inner.len(), "{done}");
    assert!(done.huge >= inner.len() && done.huge <= done.tried, "{done}");
    assert_eq!(python.sum(), sum);
}

/// What `how` returns is not what counts.
#[test]
fn what_is_said_to_be_huge_and_is_not_does_not_count() {
    let program = "b = bytearray(bytes(range(256)) * (16 << 12))\n\
        at, length = where(b), len(b)\n\
        def checksum(): return 0";
    let Some((python, _)) = Python::start(program) else { return println!("SKIP: no python3") };
    let program = Program::open(python.pid()).unwrap();
    let snapshot = snapshot::live(Some(python.pid()), 0).unwrap();
    if page().is_err() || sysfs::thp(&|path| std::fs::read_to_string(path).ok()).0 == Some(ThpMode::Always) {
        return println!("SKIP: no transparent huge pages, or all memory is on them");
    }
    let done = collapse_by(&program, &snapshot, &PARTS, &PLENTY, &mut |_| Ok(())).unwrap();
    assert!(done.tried >= 12 * MB && done.huge == 0 && done.added == 0, "{done}");
    // Memory is short: after a few blocks no other one is tried.
    let mut calls = 0;
    let short = &mut |_| {
        calls += 1;
        Err(io::Error::from_raw_os_error(libc::ENOMEM))
    };
    let done = collapse_by(&program, &snapshot, &PARTS, &PLENTY, short).unwrap();
    assert_eq!((calls, done.huge), (MAX_SHORT, 0), "{done}");
    assert!(matches!(done.stopped, Some((Stopped::Short(_), behind)) if behind > 0), "{done}");
    // A thread that is gone ends it at once.
    let gone = &mut |_| Err(io::Error::from_raw_os_error(libc::ESRCH));
    let done = collapse_by(&program, &snapshot, &PARTS, &PLENTY, gone).unwrap();
    assert!(matches!(done.stopped, Some((Stopped::Gone, _))) && done.tried == 0, "{done}");
}

#[test]
fn a_dict_becomes_huge_and_keeps_its_contents() {
    let program = "d = {str(n): n for n in range(600_000)}\n\
        at, length = id(d), 1\n\
        def checksum(): return sum(d.values()) + len(''.join(d))";
    let Some((mut python, _)) = Python::start(program) else { return println!("SKIP: no python3") };
    let sum = python.sum();
    let Some(done) = collapsed(python.pid(), PLENTY) else { return };
    assert!(done.huge + done.left_by_reason().get(&Why::Huge).map_or(0, |l| l.0) >= 32 * MB, "{done}");
    assert_eq!(python.sum(), sum);
}

#[test]
fn what_the_program_has_excluded_stays_small() {
    let program = "m = anonymous(32 << 20)\n\
        m.madvise(mmap.MADV_NOHUGEPAGE)\n\
        m.write(bytes(range(256)) * (32 << 12))\n\
        at, length = where(m), len(m)\n\
        def checksum(): return zlib.crc32(m)";
    let Some((mut python, range)) = Python::start(program) else { return println!("SKIP: no python3") };
    let sum = python.sum();
    let Some(done) = collapsed(python.pid(), PLENTY) else { return };
    assert_eq!(huge(python.pid(), range), 0, "{done}");
    let excluded = Why::Attribute(hugelift_core::attribute::Attribute::NoHuge);
    assert!(done.left_by_reason()[&excluded].0 >= 32 * MB, "{done}");
    assert_eq!(python.sum(), sum);
}

#[test]
fn little_memory_is_added_to_a_sparse_mapping() {
    // One page in each 2 MB, and a second mapping of which three quarters are present.
    if sysfs::thp(&|path| std::fs::read_to_string(path).ok()).0 == Some(ThpMode::Always) {
        return println!("SKIP: thp is always: a page that is touched is huge");
    }
    let program = "s = anonymous(256 << 20)\n\
        for n in range(0, len(s), 2 << 20): s[n] = 1\n\
        m = anonymous(64 << 20)\n\
        for n in range(0, len(m), 4096):\n  \
          if n >> 12 & 3: m[n] = 1\n\
        at, length = where(s), len(s)\n\
        def checksum(): return zlib.crc32(m) + zlib.crc32(s[::2 << 20])";
    let Some((mut python, range)) = Python::start(program) else { return println!("SKIP: no python3") };
    let resident = |pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * base_page().bytes()
    };
    let before = resident(python.pid());
    let budget = Budget { added: 5 * MB, ..PLENTY };
    let Some(done) = collapsed(python.pid(), budget) else { return };
    let grown = resident(python.pid()).saturating_sub(before);
    assert_eq!(huge(python.pid(), range), 0, "{done}");
    assert!(done.added <= 5 * MB && grown <= 6 * MB, "{grown}: {done}");
    let left = done.left_by_reason();
    assert!(left[&Why::Sparse].0 >= 250 * MB && left[&Why::OverBudget].0 > 0, "{done}");
    python.sum();
}

#[test]
fn what_a_child_has_too_is_not_copied() {
    // The child ends with its parent (PR_SET_PDEATHSIG).
    let program = "import os, signal\n\
        b = bytearray(bytes(range(256)) * (32 << 12))\n\
        r, w = os.pipe()\n\
        if os.fork() == 0:\n  \
          ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n  \
          os.write(w, b'x')\n  \
          signal.pause()\n\
        os.read(r, 1)\n\
        at, length = where(b), len(b)\n\
        def checksum(): return zlib.crc32(b)";
    let Some((mut python, range)) = Python::start(program) else { return println!("SKIP: no python3") };
    let before = huge(python.pid(), range);
    let Some(done) = collapsed(python.pid(), PLENTY) else { return };
    if before > 0 {
        return println!("SKIP: its memory was huge before");
    }
    assert_eq!(huge(python.pid(), range), 0, "{done}");
    assert!(done.left_by_reason()[&Why::NotOwn].0 >= 28 * MB, "{done}");
    python.sum();
}

#[test]
fn the_cpu_time_is_kept() {
    let program = "b = bytearray(64 << 20)\n\
        for n in range(0, len(b), 4096): b[n] = 1\n\
        at, length = where(b), len(b)\n\
        def checksum(): return 0";
    let Some((python, _)) = Python::start(program) else { return println!("SKIP: no python3") };
    let budget = Budget { cpu: Duration::ZERO, ..PLENTY };
    let Some(done) = collapsed(python.pid(), budget) else { return };
    assert_eq!((done.huge, done.tried), (0, 0), "{done}");
}

#[test]
fn processes_that_are_gone_or_have_switched_it_off() {
    assert!(matches!(collapse(1 << 23, &PARTS, &[], &PLENTY), Err(Refused::Vanished(_))));
    const PR_SET_THP_DISABLE: i32 = 41;
    let program = format!(
        "ctypes.CDLL(None).prctl({PR_SET_THP_DISABLE}, 1, 0, 0, 0)\n\
        at, length = 4096, 1\n\
        def checksum(): return 0"
    );
    let Some((python, _)) = Python::start(&program) else { return println!("SKIP: no python3") };
    match collapse(python.pid(), &PARTS, &[], &PLENTY) {
        Err(Refused::SwitchedOff(pid)) => assert_eq!(pid, python.pid()),
        Err(Refused::NoPages | Refused::Denied { .. } | Refused::TooOld(_)) => {
            println!("SKIP: not allowed")
        }
        other => panic!("{other:?}"),
    }
}
