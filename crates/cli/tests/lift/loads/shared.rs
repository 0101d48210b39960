// SPDX-License-Identifier: Apache-2.0
//! The shared buffers of a PostgreSQL at work are collapsed, a few blocks at a time, while clients write to them. Its tables,
//! indexes and pages are checked afterwards by its own tools.

use super::servers::{Postgres, Server, started};
use crate::common::build::must;
use crate::common::guard::{Exclusive, Settings};
use crate::common::run::until;
use crate::common::{Cmd, End, HUGELIFT};
use crate::{need, need_root, skip};
use hugelift_linux::proc::procfs::Process;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// How many clients write, and how many wait with an open connection, which has page tables too.
const WRITERS: &str = "4";
const READERS: &str = "16";
const LOAD: Duration = Duration::from_secs(16);
/// So often the collapse goes on while they work.
const TURNS: usize = 100;

/// A server with more buffers, whose pages have checksums.
struct Buffers(Postgres);

impl Server for Buffers {
    fn words(&self, dir: &Path) -> Vec<OsString> {
        let mut words = self.0.words(dir);
        words.extend(["-c", "shared_buffers=256MB", "-c", "max_connections=50"].map(OsString::from));
        words
    }

    fn user(&self) -> (&[&str], &[&str]) {
        self.0.user()
    }

    fn is_ready(&self, dir: &Path) -> bool {
        self.0.is_ready(dir)
    }

    fn work(&self, dir: &Path) -> String {
        self.0.work(dir)
    }
}

/// Returns the bytes of shared memory of a process, in all and huge.
fn shared(pid: u32) -> (u64, u64) {
    let usages = Process::new(pid).smaps().expect("its smaps");
    let shared = usages.iter().filter(|u| u.mapping.shared && u.mapping.path.starts_with("/dev/zero"));
    shared.fold((0, 0), |(all, huge), u| (all + u.rss, huge + u.shmem_huge))
}

/// Returns the page tables of a process and its children, in bytes.
fn tables(pid: u32) -> u64 {
    let all = children(pid).into_iter().chain([pid]);
    all.filter_map(|pid| Process::new(pid).status().ok()?.page_tables).sum()
}

pub fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its children");
    children.split_whitespace().map(|pid| pid.parse().expect("a process id")).collect()
}

#[test]
fn issue_32_2_postgres() {
    need_root!();
    need!("setpriv");
    let Some(server) = Postgres::find().map(Buffers) else { skip!("needs postgres") };
    let template = server.0.template_with(&["--data-checksums"]);
    let data = template.path().join("data");
    let begun = {
        // Its memory is aligned only if it is mapped under this setting.
        let _alone = Exclusive::take().expect("the lock");
        let _kept = Settings::keep(&[SHMEM]).expect(SHMEM);
        std::fs::write(SHMEM, "advise").expect(SHMEM);
        started(&server, &data, false)
    };
    let (load, home) = match begun {
        Ok(begun) => begun,
        Err(why) => skip!("{why}"),
    };
    let dir = home.path().join("data");
    must(server.0.tool("pgbench", &dir).args(["-i", "-q", "-s", "10", "postgres"]));
    let bench = |clients: &str, options: &[&str]| {
        let mut bench = server.0.tool("pgbench", &dir);
        let time = LOAD.as_secs().to_string();
        bench.args(["-n", "-c", clients, "-T", &time]).args(options).arg("postgres");
        bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pgbench")
    };
    let clients = [bench(WRITERS, &[]), bench(READERS, &["-S"])];
    // Four that write, keep the log and launch others, and those of the clients.
    until("all clients are connected", || children(load.child.id()).len() >= 24);
    std::thread::sleep(Duration::from_secs(1));
    let pid = load.child.id();
    let before = tables(pid);
    let until = Instant::now() + LOAD - Duration::from_secs(6);
    let mut turns = 0;
    while turns < TURNS && Instant::now() < until {
        let mut attach = Cmd::new([HUGELIFT, "attach", "--parts", "shm", "--cpu-budget", "0.1"]);
        attach = attach.arg(pid.to_string());
        let done = attach.bare();
        assert_eq!(done.end, End::Code(0), "{done:?}");
        turns += 1;
        if done.stdout.contains("0 B of memory is on huge pages now")
            && done.stdout.contains("on huge pages already")
        {
            break;
        }
    }
    let after = tables(pid);
    for client in clients {
        let out = client.wait_with_output().expect("pgbench");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        assert!(said.contains("number of transactions actually processed"), "{said}");
    }
    let (all, huge) = shared(pid);
    println!("PostgreSQL: {} of {} MB huge in its first process after {turns} turns", huge >> 20, all >> 20);
    println!("page tables: {} kB before, {} kB after", before >> 10, after >> 10);
    assert!(after < before, "{before} bytes of page tables before, {after} after");
    assert!(huge >= 64 << 20, "{huge} of {all}");
    let sql = "create extension amcheck; \
        select count(bt_index_check(c.oid, true)) from pg_index i join pg_class c on c.oid = i.indexrelid \
        join pg_am a on a.oid = c.relam where a.amname = 'btree' and c.relpersistence = 'p' and i.indisvalid; \
        select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts";
    let said =
        must(server.0.tool("psql", &dir).args(["-At", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres"]));
    assert_eq!(said.lines().last(), Some("t"), "{said}");
    load.terminate();
    load.end(String::new());
    let said = must(server.0.own_tool("pg_checksums").args(["--check", "-D"]).arg(&dir));
    assert!(said.contains("Bad checksums:  0"), "{said}");
}
