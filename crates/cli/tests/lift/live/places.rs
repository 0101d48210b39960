// SPDX-License-Identifier: Apache-2.0
//! Which processes are chosen, and processes of other users, in other namespaces, with objects opened later.

use super::{Running, command, done, files, segments};
use crate::common::huge::{assert_lifted, assert_unchanged, smaps};
use crate::common::run::{end_group, spawn};
use crate::common::{CGroup, Cmd, End, HUGELIFT, Outcome, fat};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Words that start a program as another user.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Builds the victim at a fixed address: the store has no copies of a program whose address is random.
fn fixed() -> PathBuf {
    fat("live").flags(&["-Wl,-z,now", "-no-pie"]).build()
}

/// Copies the victim to where every user can execute it.
fn public(dir: &Path, name: &str) -> PathBuf {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let path = dir.join(name);
    crate::common::cache::copy(fixed(), &path);
    path
}

/// Ends a program whose test has failed.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        end_group(&mut self.0);
    }
}

fn started(words: &[&str], program: &Path) -> Running {
    let mut words: Vec<&std::ffi::OsStr> = words.iter().map(std::ffi::OsStr::new).collect();
    words.extend([program.as_os_str(), "quiet".as_ref()]);
    Running::start(Path::new(words[0]), &words[1..])
}

/// Lifts processes from a store of their own in `store`.
fn shared(store: &Path, pids: &[u32]) -> Outcome {
    let cmd = Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "shared"])
        .args(pids.iter().map(u32::to_string));
    cmd.env("HUGELIFT_STORE", store).bare()
}

/// Returns the files in `store` that a process maps, by inode.
fn mapped_of(store: &Path, pid: u32) -> BTreeSet<u64> {
    let all = smaps(pid);
    let of_store = all.iter().filter(|u| u.mapping.path.starts_with(store) && u.shmem_huge > 0);
    of_store.map(|u| u.mapping.file.inode).collect()
}

/// Asserts that all of the program is huge and nothing of it anonymous: it is in the store, or its page cache was
/// huge already.
fn assert_shared(pid: u32, program: &Path) {
    for piece in segments(pid, program) {
        let whole = piece.inner.map_or(0, |inner| inner.len());
        assert_eq!((piece.huge, piece.thp, piece.hugetlb), (whole, 0, 0), "{piece:?}");
    }
}

#[test]
fn ten_processes_have_one_copy() {
    need_root!();
    let dir = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
    let program = fixed();
    let all: Vec<Running> = (0..10).map(|_| started(&["env"], &program)).collect();
    let pids: Vec<u32> = all.iter().map(Running::pid).collect();
    let outcome = shared(&dir.path().join("store"), &pids);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let maps: Vec<BTreeSet<u64>> = pids.iter().map(|&pid| mapped_of(dir.path(), pid)).collect();
    assert!(maps.iter().all(|of| *of == maps[0]), "{maps:?} {outcome:?}");
    pids.iter().for_each(|&pid| assert_shared(pid, &program));
    for running in all {
        assert_unchanged(running.pid(), &segments(running.pid(), &program));
        done("restore", running.pid());
        assert_eq!(mapped_of(dir.path(), running.pid()).len(), 0);
        running.report();
    }
}

/// Twenty times the code of the victim above, in processes with one thread.
#[test]
fn ten_large_processes_have_one_copy() {
    need_root!();
    const CODE: u64 = 64 << 20;
    let dir = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
    let program = fat("hold").size(CODE as usize).flags(&["-no-pie"]).build();
    let start = |_| {
        let cmd = Cmd::new([&program]);
        let mut guard = Guard(spawn(cmd.command(None).stdin(Stdio::piped())).expect("the victim"));
        let lines = BufReader::new(guard.0.stdout.take().expect("piped")).lines();
        (guard, lines)
    };
    let mut all: Vec<_> = (0..10).map(start).collect();
    for (_, lines) in &mut all {
        let first: Vec<String> = lines.by_ref().take(2).map(|line| line.expect("a line")).collect();
        assert_eq!(first, ["wrong 0", "ready"]);
    }
    let pids: Vec<u32> = all.iter().map(|(guard, _)| guard.0.id()).collect();
    let outcome = shared(&dir.path().join("store"), &pids);
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    let maps: Vec<BTreeSet<u64>> = pids.iter().map(|&pid| mapped_of(dir.path(), pid)).collect();
    assert!(maps.iter().all(|of| *of == maps[0]), "{maps:?} {outcome:?}");
    for (mut guard, mut lines) in all {
        let pieces = segments(guard.0.id(), &program);
        assert_shared(guard.0.id(), &program);
        assert!(pieces.iter().map(|piece| piece.huge).sum::<u64>() >= CODE, "{pieces:?}");
        drop(guard.0.stdin.take());
        assert_eq!(lines.next().expect("a line").expect("a line"), "wrong 0");
        assert_eq!(guard.0.wait().expect("wait").code(), Some(0));
    }
}

/// The file of the store is passed to a process that could not open it.
#[test]
fn another_user_in_other_namespaces() {
    need_root!();
    need!("setpriv", "unshare");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let program = public(dir.path(), "lives-elsewhere");
    let store = tempfile::TempDir::new_in("/dev/shm").expect("a temporary directory on tmpfs");
    let elsewhere = [&["unshare", "-n", "-m"][..], &NOBODY].concat();
    for words in [&NOBODY[..], &elsewhere] {
        let running = started(words, &program);
        let before = files(running.pid());
        let outcome = shared(&store.path().join("store"), &[running.pid()]);
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{words:?}: {outcome:?}");
        assert_shared(running.pid(), &program);
        done("restore", running.pid());
        assert_eq!(files(running.pid()), before, "{words:?}");
        running.report();
    }
}

/// A user may lift their own processes, and no others.
#[test]
fn as_an_unprivileged_user() {
    need_root!();
    need!("setpriv");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let program = public(dir.path(), "lives");
    let hugelift = dir.path().join("hugelift");
    crate::common::cache::copy(HUGELIFT, &hugelift);
    let running = started(&NOBODY, &program);
    let words = |verb: &str, pid: u32| {
        let whole = (verb == "attach").then_some("--whole");
        Cmd::new([&hugelift]).arg(verb).args(whole).arg(pid.to_string()).under(NOBODY)
    };
    let before = files(running.pid());
    if words("attach", running.pid()).bare().stderr.contains("ptrace_scope") {
        skip!("Yama lets users trace their children alone (kernel.yama.ptrace_scope)");
    }
    let outcome = words("attach", running.pid()).args(["--backing", "thp"]).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "as nobody") >= 2);
    let outcome = words("restore", running.pid()).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    assert_eq!(files(running.pid()), before);
    running.report();

    let of_root = started(&["env"], &program);
    let outcome = words("attach", of_root.pid()).bare();
    assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
    assert!(outcome.stderr.contains("Permission denied"), "{outcome:?}");
    of_root.report();
}

#[test]
fn by_name_and_by_control_group() {
    need_root!();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let program = public(dir.path(), "chosen-by-name");
    let running = started(&["env"], &program);
    let outcome =
        Cmd::new([HUGELIFT, "attach", "--whole", "--backing", "thp", "--name", "chosen-by-*"]).bare();
    // A child of the victim has the same name, and may have ended meanwhile.
    assert!(outcome.stdout.contains(&format!("(process {})", running.pid())), "{outcome:?}");
    assert!(assert_lifted(&segments(running.pid(), &program), "thp", "by name") >= 2);

    let group = CGroup::new("memory").expect("a control group");
    std::fs::write(group.path().join("cgroup.procs"), running.pid().to_string()).expect("join the group");
    let path = group.path_of(running.pid()).expect("it is in the group");
    let outcome = Cmd::new([HUGELIFT, "restore", "--json", "--cgroup", &path]).bare();
    let json: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let all = json["processes"].as_array().expect("processes");
    assert!(all.iter().any(|row| row["pid"] == running.pid() && row["error"].is_null()), "{json}");
    let huge: u64 = segments(running.pid(), &program).iter().map(|piece| piece.thp).sum();
    assert_eq!((huge, &json["version"]), (0, &Value::from(1)));
    running.report();
    // The group is removed when it is empty.
    drop(running);

    for words in [["--name", "no-such-process-*"], ["--cgroup", "/no/such"], ["--unit", "no-such-unit"]] {
        let outcome = Cmd::new([HUGELIFT, "attach", "--whole"]).args(words).bare();
        assert_eq!(outcome.end, End::Code(125), "{outcome:?}");
        assert!(outcome.stderr.contains(words[1]) && outcome.stderr.lines().count() == 1, "{outcome:?}");
    }
}

/// A borrowed thread whose control group has used up its CPU time goes on in the group's next period. So does one that
/// waits for a CPU of a busy machine.
#[test]
fn in_a_group_that_gets_little_cpu_time() {
    need_root!();
    let group = match CGroup::new("cpu") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let program = fat("hold").build();
    let mut running = Running::begin(&program, &["burn"]);
    assert_eq!([running.line(), running.line()], ["wrong 0", "ready"]);
    let pid = running.pid();
    // Each time that it is let go it waits for up to 0.6 s, and two or three times in one system call.
    let limit = |quota: &str| match group.is_v2() {
        true => group.limit(&["cpu.max"], &format!("{quota} 600000")).expect("cpu.max"),
        false => {
            group.limit(&["cpu.cfs_period_us"], "600000").expect("cpu.cfs_period_us");
            group.limit(&["cpu.cfs_quota_us"], quota).expect("cpu.cfs_quota_us");
        }
    };
    limit("3000");
    std::fs::write(group.path().join("cgroup.procs"), pid.to_string()).expect("join the group");
    // It may also not stop in time, and is then let go: nothing has begun.
    let is_lifted = || {
        let outcome = command("attach", &[pid]).bare();
        assert!(!outcome.stderr.contains("did not come back"), "{outcome:?}");
        (outcome.end, outcome.stderr.as_str()) == (End::Code(0), "")
    };
    assert!((0..5).any(|_| is_lifted()), "it is never lifted");
    assert!(assert_lifted(&segments(pid, &program), "thp", "with little CPU time") >= 1);
    limit(if group.is_v2() { "max" } else { "-1" });
    drop(running.stdin.take());
    assert_eq!(running.line(), "wrong 0");
}

/// What a program opens by dlopen(3) is lifted as what it has needed.
#[test]
fn objects_that_java_opened_later() {
    need!("java", "javac");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "class Sums { public static void main(String[] a) throws Exception {\n\
        System.out.println(\"ready\"); System.out.flush(); int wrong = 0; long n = 0;\n\
        while (System.in.available() == 0) { long s = 0; java.util.HashMap<Integer,Integer> m = new java.util.HashMap<>();\n\
        for (int i = 0; i < 20000; i++) { m.put(i, i * 7); } for (int v : m.values()) { s += v; }\n\
        if (s != 1399930000L) { wrong++; } n++; }\n\
        System.out.println(n > 0 && wrong == 0 ? \"fine\" : \"wrong \" + wrong + \" of \" + n); } }\n";
    std::fs::write(dir.path().join("Sums.java"), source).expect("write the source");
    crate::common::build::must(std::process::Command::new("javac").current_dir(&dir).arg("Sums.java"));
    let cmd = Cmd::new(["java", "-Xmx256m", "-cp"]).arg(dir.path()).arg("Sums");
    let mut guard = Guard(cmd.command(None).stdin(Stdio::piped()).spawn().expect("java"));
    let child = &mut guard.0;
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("a line"), "ready");
    let outcome = command("attach", &[child.id()]).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    let jvm = smaps(child.id()).into_iter().find(|u| u.mapping.path.ends_with("libjvm.so"));
    let jvm = std::fs::canonicalize(jvm.expect("libjvm.so is mapped").mapping.path).expect("its path");
    assert!(std::fs::metadata(&jvm).is_ok_and(|meta| meta.size() > 4 << 20));
    let pieces = segments(child.id(), &jvm);
    assert!(assert_lifted(&pieces, "thp", "libjvm.so") >= 1, "{pieces:?}");
    assert_unchanged(child.id(), &pieces);
    child.stdin.take().expect("piped").write_all(b"\n").expect("write");
    assert_eq!(lines.next().expect("a line").expect("a line"), "fine");
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}

/// Memory of an allocator becomes huge, and the result of the program stays.
#[test]
fn memory_of_python() {
    need_root!();
    need!("python3");
    let source = "import sys\n\
        d = {i: str(i) * 5 for i in range(600000)}\n\
        print('ready', flush=True)\n\
        wrong = n = 0\n\
        import select\n\
        while not select.select([sys.stdin], [], [], 0)[0]:\n\
        \x20   n += 1\n\
        \x20   wrong += sum(map(len, d.values())) != 17444450\n\
        print('fine' if n and not wrong else f'{wrong} wrong of {n}')\n";
    let cmd = Cmd::new(["python3", "-c", source]).env("PYTHONMALLOC", "malloc");
    let mut guard = Guard(cmd.command(None).stdin(Stdio::piped()).spawn().expect("python3"));
    let child = &mut guard.0;
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("a line"), "ready");
    let pid = child.id().to_string();
    let parts = ["attach", "--parts", "heap,anon", "--cpu-budget", "20", &pid];
    let outcome = Cmd::new([HUGELIFT]).args(parts).bare();
    assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(0), ""), "{outcome:?}");
    assert!(outcome.stdout.contains("of anonymous memory is on huge pages now"), "{outcome:?}");
    let huge: u64 = smaps(child.id()).iter().map(|usage| usage.anon_huge).sum();
    assert!(huge > 30 << 20, "{huge} bytes are huge: {outcome:?}");
    // Where nothing may be added, memory that was never touched stays away.
    let id = child.id();
    let rss = || smaps(id).iter().map(|usage| usage.rss).sum::<u64>();
    let before = rss();
    let outcome = Cmd::new([HUGELIFT]).args(parts).args(["--add", "0"]).bare();
    assert_eq!(outcome.end, End::Code(0), "{outcome:?}");
    assert!(rss() < before + (2 << 20), "{before} bytes before, {} after: {outcome:?}", rss());
    child.stdin.take().expect("piped").write_all(b"\n").expect("write");
    assert_eq!(lines.next().expect("a line").expect("a line"), "fine");
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}
