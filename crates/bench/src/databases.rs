// SPDX-License-Identifier: Apache-2.0
//! Databases that work without a client: MariaDB and PostgreSQL run statements that they read from a file, as they do
//! when a database is set up. So one process does the work of a server, and nothing else needs the CPUs.

use anyhow::{Context as _, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// PostgreSQL refuses to run as root.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
/// The user and group nobody.
const NOBODY: u32 = 65534;

/// A table of 100,000 rows, which is read by its key without end: one row, then 20. A second start makes it anew.
const MARIADB: &str = "\
DROP DATABASE IF EXISTS b;
CREATE DATABASE b;
USE b;
CREATE TABLE t (id INT PRIMARY KEY, k INT, c CHAR(120)) ENGINE=InnoDB;
INSERT INTO t SELECT seq, seq * 7 % 100000, REPEAT(MD5(seq), 3) FROM seq_1_to_100000;
BEGIN NOT ATOMIC DECLARE i INT; WHILE 1 DO SET i = 1 + FLOOR(RAND() * 99900); \
SELECT c INTO @c FROM t WHERE id = i; SELECT SUM(k) INTO @s FROM t WHERE id BETWEEN i AND i + 20; \
END WHILE; END;
";

/// The same for PostgreSQL, which plans each statement anew.
const POSTGRES: &str = "\
DROP TABLE IF EXISTS t
CREATE TABLE t AS SELECT i AS id, i * 7 % 100000 AS k, repeat(md5(i::text), 3) AS c FROM generate_series(1, 100000) i
ALTER TABLE t ADD PRIMARY KEY (id)
DO $$ DECLARE s text; n bigint; i int; BEGIN LOOP i := 1 + (random() * 99900)::int; \
EXECUTE 'SELECT c FROM t WHERE id = $1' INTO s USING i; \
EXECUTE 'SELECT sum(k) FROM t WHERE id BETWEEN $1 AND $1 + 20' INTO n USING i; END LOOP; END $$
";

/// Returns the words that start MariaDB on a new database in a folder.
///
/// # Errors
/// The statements cannot be written.
pub fn mariadb(dir: &Path) -> Result<Vec<OsString>> {
    let (data, statements) = (dir.join("data"), dir.join("statements"));
    fs::create_dir(&data)?;
    fs::write(&statements, MARIADB)?;
    let command =
        "exec mariadbd --no-defaults --bootstrap --user=root --datadir=\"$0\" <\"$1\" >/dev/null 2>&1";
    Ok(vec!["sh".into(), "-c".into(), command.into(), data.into(), statements.into()])
}

/// Returns the words that start PostgreSQL on a new database in a folder; as the user nobody, if this process is root's.
///
/// # Errors
/// There is no PostgreSQL, or it cannot make the database.
pub fn postgres(dir: &Path) -> Result<Vec<OsString>> {
    let data = initialized(dir, "data")?;
    let statements = dir.join("statements");
    fs::write(&statements, POSTGRES)?;
    let mut argv = start_words("--single -D \"$1\" postgres <\"$2\" >/dev/null 2>&1", "postgres", &data)?;
    argv.push(statements.into());
    Ok(argv)
}

/// Makes an empty database in a folder, of which "postgres" is the administrator. The folder then belongs to the user nobody, if
/// this process is root's.
///
/// # Errors
/// There is no PostgreSQL, or it cannot make the database.
pub fn initialized(dir: &Path, name: &str) -> Result<PathBuf> {
    let data = dir.join(name);
    fs::create_dir(&data)?;
    if nix::unistd::geteuid().is_root() {
        [dir, &data].iter().try_for_each(|path| chown(path, Some(NOBODY), Some(NOBODY)))?;
    }
    let init = start_words("-A trust -U postgres --locale=C -D \"$1\"", "initdb", &data)?;
    let out = Command::new(&init[0]).args(&init[1..]).stdin(Stdio::null()).output().context("initdb")?;
    ensure!(out.status.success(), "initdb: {}", String::from_utf8_lossy(&out.stderr));
    Ok(data)
}

/// Returns the words that start a program of PostgreSQL, as the user nobody if this process is root's. `command` is what follows
/// in a shell, where `$1` is the folder of the data.
///
/// # Errors
/// There is no PostgreSQL.
pub fn start_words(command: &str, program: &str, data: &Path) -> Result<Vec<OsString>> {
    let bin = find_postgres().context("no PostgreSQL")?;
    let prefix = if nix::unistd::geteuid().is_root() { AS_NOBODY } else { "env" };
    let command = format!("cd \"$1\" && exec {prefix} \"$0\" {command}");
    Ok(vec!["sh".into(), "-c".into(), command.into(), bin.join(program).into(), data.into()])
}

/// Returns the folder of the newest PostgreSQL that Debian has installed.
#[must_use]
pub fn find_postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    bins.filter(|bin| bin.join("postgres").exists()).max()
}
