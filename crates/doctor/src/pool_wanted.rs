// SPDX-License-Identifier: Apache-2.0
//! The pool of huge pages that a program would use by itself, if there were one: it asks for pages of a pool when it starts, and
//! goes on with small ones where it gets none.
//!
//! PostgreSQL's `huge_pages` is `try` unless it is set; MySQL and MariaDB ask with `--large-pages`, the JVM with
//! `-XX:+UseLargePages` (their manuals).

use crate::facts::Process;
use crate::read;

/// What a process would take of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolWanted {
    /// Its program.
    pub program: String,
    /// How many bytes.
    pub bytes: u64,
}

/// Returns what a process asked a pool for and did not get; `None` if it did not ask, has pages of a pool, or cannot be read.
pub fn pool_wanted(pid: u32) -> Option<PoolWanted> {
    let process = read::process(pid).ok()?;
    let shared =
        read::shared(Some(pid)).map_or(0, |shared| shared.liftable.saturating_add(shared.incongruent));
    wanted(&process, shared)
}

/// Returns the same of what was read: `shared` is what it has of shared memory, in bytes.
fn wanted(process: &Process, shared: u64) -> Option<PoolWanted> {
    if process.shared_hugetlb > 0 || process.writable_hugetlb > 0 {
        return None;
    }
    let has = |words: &[&str]| process.args.iter().any(|arg| words.contains(&arg.as_str()));
    let bytes = match process.exe.rsplit('/').next().unwrap_or_default() {
        "postgres" | "postmaster" if postgres_asks(process) => shared,
        "mysqld" | "mariadbd" if has(&["--large-pages", "--large_pages", "--large-pages=1"]) => {
            process.anonymous
        }
        "java" if has(&["-XX:+UseLargePages"]) && !has(&["-XX:+UseTransparentHugePages"]) => {
            process.anonymous
        }
        _ => 0,
    };
    (bytes > 0).then(|| PoolWanted { program: process.exe.clone(), bytes })
}

fn postgres_asks(process: &Process) -> bool {
    let from_args = process.args.iter().rev().find_map(|arg| Some(arg.split_once("huge_pages=")?.1));
    from_args.or(process.postgres_huge_pages.as_deref()) != Some("off")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(exe: &str, args: &[&str]) -> Process {
        let args = args.iter().map(|arg| (*arg).to_string()).collect();
        Process { exe: exe.into(), args, anonymous: 512 << 20, ..Process::default() }
    }

    #[test]
    fn issue_33_2_a_program_that_asks_for_a_pool() {
        let bytes = |process: &Process, shared| wanted(process, shared).map(|wanted| wanted.bytes);
        let postgres = process("/usr/lib/postgresql/15/bin/postgres", &["postgres", "-D", "/data"]);
        assert_eq!(bytes(&postgres, 1 << 30), Some(1 << 30));
        assert_eq!(bytes(&postgres, 0), None);
        let off = process("/usr/lib/postgresql/15/bin/postgres", &["postgres", "-c", "huge_pages=off"]);
        assert_eq!(bytes(&off, 1 << 30), None);
        let in_file = Process { postgres_huge_pages: Some("off".into()), ..postgres.clone() };
        assert_eq!(bytes(&in_file, 1 << 30), None);
        assert_eq!(bytes(&Process { shared_hugetlb: 1 << 30, ..postgres }, 1 << 30), None);
        let java = |word| process("/usr/bin/java", &["java", word, "Main"]);
        assert_eq!(bytes(&java("-XX:+UseLargePages"), 0), Some(512 << 20));
        assert_eq!(bytes(&java("-XX:-UseLargePages"), 0), None);
        assert_eq!(bytes(&process("/usr/sbin/mariadbd", &["mariadbd", "--large-pages"]), 0), Some(512 << 20));
        assert_eq!(bytes(&process("/usr/sbin/mariadbd", &["mariadbd"]), 0), None);
        assert_eq!(bytes(&process("/bin/other", &["--large-pages"]), 1 << 30), None);
    }
}
