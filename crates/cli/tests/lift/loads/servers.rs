// SPDX-License-Identifier: Apache-2.0
//! Databases under their own load generators, over sockets in the file system.

use super::*;
use crate::common::build::must;
use crate::common::find;
use crate::{need, need_root, skip};
use std::fs;
use std::path::PathBuf;

/// A server whose data is in a directory of its own.
pub trait Server {
    fn words(&self, dir: &Path) -> Vec<OsString>;

    /// Words that switch to a user who may run it, for a bare run, and options of hugelift that do
    /// so for a lifted run.
    fn user(&self) -> (&[&str], &[&str]) {
        (&[], &[])
    }

    fn is_ready(&self, dir: &Path) -> bool;

    /// Makes it work, and returns its data afterwards.
    fn work(&self, dir: &Path) -> String;
}

/// Starts it on a fresh copy of the data in `template`. Returns also the folder of the copy, which is `data` in
/// there.
///
/// # Errors
/// See [`Load::start`].
pub(super) fn started(
    server: &dyn Server,
    template: &Path,
    lifted: bool,
) -> Result<(Load, tempfile::TempDir), String> {
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let dir = home.path().join("data");
    must(Command::new("cp").arg("-a").arg(template).arg(&dir));
    let (front, options) = server.user();
    if !front.is_empty() {
        must(Command::new("chmod").arg("755").arg(home.path()));
    }
    let mut load = Load::start(&server.words(&dir), lifted, front, options)?;
    load.wait_for("the server is ready", || server.is_ready(&dir));
    Ok((load, home))
}

/// Starts it, makes it work, and ends it.
fn serve(server: &dyn Server, template: &Path, lifted: bool) -> Result<Run, String> {
    let (mut load, home) = started(server, template, lifted)?;
    let dir = home.path().join("data");
    let result = server.work(&dir);
    load.look();
    load.terminate();
    Ok(load.end(result))
}

fn check(name: &str, server: &dyn Server, template: &Path, parts: &[&str]) {
    let program = PathBuf::from(&server.words(template)[0]);
    prime(&program);
    if let Err(why) = serve(server, template, false) {
        skip!("{why}");
    }
    compare(name, |lifted| serve(server, template, lifted).expect("as before"), parts);
}

pub struct Redis(pub PathBuf);

impl Server for Redis {
    fn words(&self, dir: &Path) -> Vec<OsString> {
        let socket = dir.join("socket");
        let fixed = ["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"];
        let mut words = vec![self.0.clone().into_os_string()];
        words.extend(fixed.map(OsString::from));
        words.extend([OsString::from("--unixsocket"), socket.into(), "--dir".into(), dir.into()]);
        words
    }

    fn is_ready(&self, dir: &Path) -> bool {
        let ping = Command::new("redis-cli").arg("-s").arg(dir.join("socket")).arg("ping").output();
        ping.is_ok_and(|out| out.stdout.starts_with(b"PONG"))
    }

    fn work(&self, dir: &Path) -> String {
        let cli = || {
            let mut command = Command::new("redis-cli");
            command.arg("-s").arg(dir.join("socket"));
            command
        };
        let file = dir.join("commands");
        let set = |i: u32| format!("SET key:{i:012} {:0100}\r\n", i.wrapping_mul(2_654_435_761));
        fs::write(&file, (0..500_000).map(set).collect::<String>()).expect("write");
        let pipe = Command::new("sh")
            .args(["-c", "redis-cli -s \"$0/socket\" --pipe < \"$0/commands\""])
            .arg(dir)
            .output();
        let said = String::from_utf8(pipe.expect("redis-cli").stdout).expect("UTF-8");
        assert!(said.contains("errors: 0, replies: 500000"), "{said}");
        let load = ["-n", "30000", "-r", "500000", "-t", "get", "-c", "1", "-q"];
        must(Command::new("redis-benchmark").arg("-s").arg(dir.join("socket")).args(load));
        must(cli().args(["debug", "digest"]))
    }
}

#[test]
fn redis() {
    need_root!();
    need!("redis-server", "redis-cli", "redis-benchmark");
    let template = tempfile::TempDir::new().expect("a temporary directory");
    let program = find("redis-server").expect("redis-server");
    // Its allocator is jemalloc, which does not use the heap of brk(2).
    check("redis", &Redis(program), template.path(), &[]);
}

pub struct MariaDb(PathBuf);

impl MariaDb {
    pub fn find() -> MariaDb {
        MariaDb(find("mariadbd").expect("mariadbd").canonicalize().expect("mariadbd"))
    }

    /// Makes its data with two tables. A server does it, which is ended afterwards.
    ///
    /// # Errors
    /// See [`Load::start`].
    pub fn template(&self) -> Result<tempfile::TempDir, String> {
        let template = tempfile::TempDir::new().expect("a temporary directory");
        fs::create_dir(template.path().join("test")).expect("mkdir");
        let mut load = Load::start(&self.words(template.path()), false, &[], &[])?;
        load.wait_for("the server is ready", || self.is_ready(template.path()));
        must(MariaDb::bench(template.path()).args(["oltp_read_write", "prepare"]));
        load.terminate();
        load.end(String::new());
        Ok(template)
    }

    pub(super) fn bench(dir: &Path) -> Command {
        let mut command = Command::new("sysbench");
        command.args(["--db-driver=mysql", "--mysql-user=root", "--mysql-db=test", "--tables=2"]);
        command.args(["--table-size=20000", "--rand-seed=7", "--threads=1"]);
        command.arg(format!("--mysql-socket={}", dir.join("socket").display()));
        command
    }
}

impl Server for MariaDb {
    fn words(&self, dir: &Path) -> Vec<OsString> {
        let at = |option: &str, name: &str| format!("--{option}={}", dir.join(name).display()).into();
        let mut words = vec![self.0.clone().into_os_string()];
        let fixed = ["--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables"];
        words.extend(fixed.map(OsString::from));
        words.extend(["--innodb-buffer-pool-size=256M", "--skip-log-bin"].map(OsString::from));
        words.extend([at("datadir", ""), at("socket", "socket"), at("pid-file", "pid"), at("tmpdir", "")]);
        words
    }

    fn is_ready(&self, dir: &Path) -> bool {
        dir.join("socket").exists()
    }

    fn work(&self, dir: &Path) -> String {
        let script = dir.join("sums.lua");
        let sums = "function sums()\n\
            local all = sysbench.sql.driver():connect():query('CHECKSUM TABLE sbtest1, sbtest2')\n\
            for _ = 1, all.nrows do local row = all:fetch_row(); print(row[1], row[2]) end\n\
            end\n\
            sysbench.cmdline.commands = { sums = { sums } }\n";
        fs::write(&script, sums).expect("write");
        must(MariaDb::bench(dir).args(["oltp_read_write", "--events=1500", "--time=0", "run"]));
        must(MariaDb::bench(dir).arg(&script).arg("sums"))
    }
}

#[test]
fn mariadb() {
    need_root!();
    need!("mariadbd", "sysbench");
    let server = MariaDb::find();
    let template = match server.template() {
        Ok(template) => template,
        Err(why) => skip!("{why}"),
    };
    check("MariaDB", &server, template.path(), &["text", "rodata"]);
}

/// PostgreSQL refuses to run as root.
pub struct Postgres {
    pub bin: PathBuf,
}

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

impl Postgres {
    pub fn find() -> Option<Postgres> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        let mut found: Vec<PathBuf> = versions.filter_map(|v| Some(v.ok()?.path().join("bin"))).collect();
        found.extend(find("postgres").and_then(|p| Some(p.canonicalize().ok()?.parent()?.to_path_buf())));
        found.sort();
        found.into_iter().rev().find(|bin| bin.join("postgres").exists()).map(|bin| Postgres { bin })
    }

    /// Makes its data, in the folder `data` of the one that is returned.
    pub fn template(&self) -> tempfile::TempDir {
        self.template_with(&[])
    }

    /// Makes its data with further options of initdb.
    pub fn template_with(&self, options: &[&str]) -> tempfile::TempDir {
        let home = tempfile::TempDir::new().expect("a temporary directory");
        must(Command::new("chmod").arg("755").arg(home.path()));
        let data = home.path().join("data");
        must(Command::new("install").args(["-d", "-o", "65534", "-g", "65534", "-m", "700"]).arg(&data));
        let mut init = Command::new(NOBODY[0]);
        init.args(&NOBODY[1..])
            .arg(self.bin.join("initdb"))
            .arg("-D")
            .arg(&data)
            .args(["-U", "nobody", "-N"])
            .args(options);
        must(init.current_dir("/"));
        home
    }

    /// Returns a command of one of its clients.
    pub fn tool(&self, name: &str, dir: &Path) -> Command {
        let mut command = self.own_tool(name);
        command.arg("-h").arg(dir).args(["-U", "nobody"]);
        command
    }

    /// Returns a command of one of its tools that work on its files.
    pub fn own_tool(&self, name: &str) -> Command {
        let mut command = Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).arg(self.bin.join(name)).current_dir("/");
        command
    }
}

impl Server for Postgres {
    fn words(&self, dir: &Path) -> Vec<OsString> {
        let mut words = vec![self.bin.join("postgres").into_os_string(), "-D".into(), dir.into()];
        // Left alone, it would take pages of a pool that another test has made for itself.
        let settings =
            ["listen_addresses=", "shared_buffers=128MB", "fsync=off", "autovacuum=off", "huge_pages=off"];
        for setting in settings {
            words.extend(["-c".into(), setting.into()]);
        }
        words.extend(["-k".into(), dir.into()]);
        words
    }

    fn user(&self) -> (&[&str], &[&str]) {
        (&NOBODY, &["--user", "65534:65534"])
    }

    fn is_ready(&self, dir: &Path) -> bool {
        self.tool("psql", dir)
            .args(["-c", "select 1", "postgres"])
            .output()
            .is_ok_and(|out| out.status.success())
    }

    fn work(&self, dir: &Path) -> String {
        let bench = |args: &[&str]| must(self.tool("pgbench", dir).args(args).arg("postgres"));
        bench(&["-i", "-q", "-s", "2"]);
        bench(&["-n", "-c", "1", "-t", "500", "--random-seed=7"]);
        bench(&["-n", "-c", "2", "-t", "2000", "-S", "--random-seed=7"]);
        let sums = "select count(*), sum(abalance), sum(aid::bigint * abalance) from pgbench_accounts; \
            select count(*), sum(delta), sum(aid::bigint) from pgbench_history";
        must(self.tool("psql", dir).args(["-At", "-c", sums, "postgres"]))
    }
}

#[test]
fn postgres() {
    need_root!();
    need!("setpriv");
    let Some(server) = Postgres::find() else { skip!("needs postgres") };
    let home = server.template();
    check("PostgreSQL", &server, &home.path().join("data"), &["text", "rodata"]);
}
