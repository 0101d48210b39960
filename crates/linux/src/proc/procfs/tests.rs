// SPDX-License-Identifier: Apache-2.0
//! What /proc shows of this process, of one that has ended, of threads, and of odd text.

use super::*;

#[test]
fn own_process() {
    let maps = Process::OWN.maps().unwrap();
    let here = Addr(own_process as fn() as usize as u64);
    let mapping = maps.iter().find(|m| m.range.contains(here)).unwrap();
    assert!(mapping.prot.exec && mapping.is_file());
    let pid = Process::new(std::process::id());
    assert!(pid.smaps().unwrap().iter().any(|u| u.mapping.range.contains(here) && u.rss > 0));
    let auxv = pid.auxv().unwrap();
    assert!(maps.iter().any(|m| m.range.contains(Addr(auxv.entry)) && m.prot.exec));
    assert!(pid.status().unwrap().threads.unwrap() >= 1);
    let stat = Process::OWN.stat().unwrap();
    assert_eq!((stat.pid, stat.parent), (pid.pid(), std::os::unix::process::parent_id()));
    assert_eq!(pid.stat_of_thread(pid.pid().cast_signed()).unwrap().start, stat.start);
}

#[test]
fn a_process_without_memory() {
    let (pid, start) = Process::OWN.stat().unwrap().identity();
    assert!(is_whole((pid, start)) && !is_whole((pid, start + 1)));
    // A kernel thread, where this machine's are to be seen, has none at any time.
    if let Some(stat) = Process::new(2).stat().ok().filter(|stat| stat.parent == 0) {
        assert!(!is_whole(stat.identity()));
    }
}

#[test]
fn a_process_that_has_ended_has_no_memory() {
    assert!(!Process::OWN.has_no_memory());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let process = Process::new(child.id());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !process.has_no_memory() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(process.has_no_memory());
    // The kernel refuses its files to its own user. Root sees that it has ended.
    let refused = io::Error::from_raw_os_error(libc::EACCES);
    let error = process.explain(process.path("mem"), &refused);
    assert_eq!(error, ProcError::NoMemory { pid: child.id() });
    child.wait().unwrap();
    assert!(process.has_no_memory());
}

#[test]
fn all_threads_are_listed() {
    std::thread::scope(|scope| {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let waits = scope.spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = ends.recv();
        });
        let other = told.recv().unwrap();
        let all = Process::OWN.threads();
        assert!(all.contains(&other) && all.contains(&nix::unistd::gettid().as_raw()), "{all:?}");
        assert!(Process::OWN.count_threads().unwrap() > 1);
        drop(end);
        waits.join().unwrap();
    });
    assert_eq!((Process::new(1 << 23).count_threads(), Process::new(1 << 23).threads()), (None, vec![]));
}

#[test]
fn no_such_process() {
    // Larger than any pid: the kernel's limit is 2^22.
    let gone = Process::new(1 << 23);
    let error = gone.maps().unwrap_err();
    assert!(error.to_string().contains("8388608"), "{error}");
    assert!(matches!(error, ProcError::Vanished { .. }), "{error}");
}

#[test]
fn status_and_auxv_of_odd_text() {
    let status = parse_status(
        b"Name:\tx\nUid:\t5\t6\t7\t8\nThreads:\t7\nTHP_enabled:\t0\nTracerPid:\tx\nVmHWM:\t     12 kB\nnonsense",
    );
    let want = Status {
        uid: Some(6),
        real_uid: Some(5),
        thp_enabled: Some(false),
        threads: Some(7),
        peak_bytes: Some(12 << 10),
        ..Status::default()
    };
    assert_eq!(parse_status(b"VmHWM:\t99999999999999999999 kB\n"), Status::default());
    assert_eq!(status, want);
    let mut bytes = Vec::new();
    for word in [libc::AT_ENTRY, 0x401000, libc::AT_NULL, 0, libc::AT_ENTRY, 5] {
        bytes.extend(word.to_le_bytes());
    }
    assert_eq!(parse_auxv(&bytes).entry, 0x401000);
    assert_eq!(parse_auxv(&bytes[..15]), Auxv::default());
}
