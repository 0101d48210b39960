// SPDX-License-Identifier: Apache-2.0
//! Reading real processes.

use super::*;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn program(known: &Known) -> &Program {
    match &known.kind {
        Kind::Program(program) => program,
        other => panic!("{other:?}"),
    }
}

/// Starts cat, which waits for its input, and returns it once it executes.
fn cat() -> Child {
    Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn issue_33_this_process_is_known() {
    let mut reader = Reader::new();
    let own = std::process::id();
    let known = reader.read(own).unwrap();
    let executable = program(&known).executable.clone().unwrap();
    assert_eq!(executable.path, std::env::current_exe().unwrap());
    assert!(executable.code_bytes > 100_000, "{executable:?}");
    assert_eq!(known.identity, Process::new(own).stat().unwrap().identity());
    let owner = reader.owner(known.identity);
    assert_eq!(owner.real_uid, Some(nix::unistd::getuid().as_raw()));
    assert!(owner.group.as_ref().is_none_or(|group| group.has_root()), "{owner:?}");
    assert!(Arc::ptr_eq(&owner, &reader.owner(known.identity)), "it is remembered");
    let again = reader.read(own).unwrap();
    assert!(Arc::ptr_eq(&executable, program(&again).executable.as_ref().unwrap()));
    // Larger than any pid.
    assert!(matches!(reader.read(1 << 23), Err(ProcError::Vanished { .. })));
    assert_eq!(reader.owner((1 << 23, 1)).real_uid, None);
}

#[test]
fn issue_33_the_mapped_code_is_read_after_its_cpu_time() {
    let own = std::process::id();
    let mut reader = Reader::new();
    reader.second = u64::MAX;
    assert_eq!(program(&reader.read(own).unwrap()).mapped_code, None);
    let mut reader = Reader::new();
    reader.second = 0;
    let known = reader.read(own).unwrap();
    let maps = Process::OWN.maps().unwrap();
    let code = maps.iter().filter(|m| m.prot.exec && m.is_file()).map(|m| m.range.len());
    // Other tests of this process may map files just now.
    let (mapped, whole) = (program(&known).mapped_code.unwrap(), code.sum::<u64>());
    assert!(mapped.abs_diff(whole) < 1 << 20, "{mapped} {whole}");
    assert_eq!(known.code_bytes(), mapped);
    assert!(mapped > program(&known).executable.as_ref().unwrap().code_bytes);
}

#[test]
fn issue_33_a_program_that_executes_another_is_read_again() {
    let mut reader = Reader::new();
    let mut child = Command::new("sh")
        .args(["-c", "echo; read go; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut line = [0; 1];
    std::io::Read::read_exact(&mut out, &mut line).unwrap();
    let first = reader.read(child.id()).unwrap();
    let shell = program(&first).executable.clone().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\nx").unwrap();
    // What cat has copied, it has executed.
    std::io::Read::read_exact(&mut out, &mut line).unwrap();
    let second = reader.read(child.id()).unwrap();
    assert_eq!(second.identity, first.identity);
    assert_ne!(program(&second).executable.as_ref().unwrap().path, shell.path);
    end(child);
}

#[test]
fn issue_33_a_process_that_sleeps_is_not_read_again() {
    let (mut reader, mut child, began) = (Reader::new(), cat(), Instant::now());
    let pid = child.id();
    assert!(reader.is_new_and_idle(pid) || cpu_time(pid).unwrap() >= IDLE);
    let first = reader.read(pid).unwrap();
    assert!(!reader.is_new_and_idle(pid));
    let is_unchanged = |reader: &mut Reader| reader.unchanged(pid, cpu_time(pid).ok()).is_some();
    // It waits for its input some time.
    while !is_unchanged(&mut reader) {
        assert!(began.elapsed() < Duration::from_secs(20));
        reader.read(pid).unwrap();
    }
    assert_eq!(reader.read(pid).unwrap().identity, first.identity);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!is_unchanged(&mut reader) && reader.read(pid).is_err());
}

#[test]
fn issue_33_one_file_may_have_two_paths() {
    let mut reader = Reader::new();
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    // A child of another test would inherit the descriptor of a copy that is written here, and what is open for writing cannot be executed.
    assert!(Command::new("cp").arg("/bin/cat").arg(&first).status().unwrap().success());
    std::fs::hard_link(&first, &second).unwrap();
    let start = |path| std::process::Command::new(path).stdin(std::process::Stdio::piped()).spawn().unwrap();
    // spawn() returns once the program is executed.
    let children = [start(&first), start(&second)];
    let [one, other] = children.each_ref().map(|child| {
        let known = reader.read(child.id()).unwrap();
        program(&known).executable.clone().unwrap()
    });
    assert_eq!((&one.path, &other.path), (&first, &second), "a name is of a process, not of a file");
    assert!(one.file == other.file && one.code_bytes > 0 && one.code_bytes == other.code_bytes, "{one:?}");
    children.into_iter().for_each(end);
}

#[test]
fn issue_33_threads_of_the_kernel_and_zombies_have_no_program() {
    let mut reader = Reader::new();
    let mut child = cat();
    drop(child.stdin.take());
    let (pid, began) = (child.id(), Instant::now());
    while !matches!(reader.read(pid).unwrap().kind, Kind::Ended) {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let known = reader.read(pid).unwrap();
    assert_eq!((known.code_bytes(), known.seen(true).size), (0, Size::Small));
    child.wait().unwrap();
    let is_kthreadd = Process::new(2).stat().is_ok_and(|stat| &*stat.comm == "kthreadd");
    if !is_kthreadd {
        return println!("SKIP: the threads of the kernel are not in this namespace");
    }
    let known = reader.read(2).unwrap();
    assert!(matches!(known.kind, Kind::Kernel) && known.seen(true).size == Size::Kernel, "{known:?}");
}

#[test]
fn issue_33_the_list_has_this_process() {
    let (pids, cpu) = list().unwrap();
    assert!(pids.contains(&std::process::id()));
    assert!(cpu > Duration::ZERO);
}
