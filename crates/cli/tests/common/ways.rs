// SPDX-License-Identifier: Apache-2.0
//! One program, lifted with each backing in turn, with all that the backing needs.

use super::guard::Pool;
use super::{Cmd, Primed, skipped};
use std::path::{Path, PathBuf};

/// A program and how it is lifted.
pub struct Way {
    /// The backing.
    pub backing: &'static str,
    /// The program, or a copy of it whose page cache is huge where the backing needs that.
    pub program: PathBuf,
    store: Option<PathBuf>,
}

impl Way {
    /// Returns the command that runs the program with these arguments.
    pub fn cmd(&self, args: &[&str]) -> Cmd {
        let cmd = Cmd::new([&self.program]).args(args);
        match &self.store {
            Some(store) => cmd.env("HUGELIFT_STORE", store),
            None => cmd,
        }
    }

    /// Returns the options of `hugelift run`.
    pub fn options(&self) -> [&'static str; 2] {
        ["--backing", self.backing]
    }

    /// Returns whether the program runs from its own file, without a copy.
    pub fn is_file(&self) -> bool {
        self.backing == "pagecache"
    }

    /// Returns whether the copies are anonymous memory.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.backing, "thp" | "hugetlb")
    }
}

/// Runs `body` with `program` and each backing that works on this machine; the others are skipped.
pub fn each_way(program: &Path, body: impl Fn(&Way)) {
    let way = |backing| Way { backing, program: program.to_owned(), store: None };
    body(&way("thp"));
    if nix::unistd::geteuid().is_root() {
        match Pool::shared() {
            Ok(_pool) => body(&way("hugetlb")),
            Err(why) => skipped(&why),
        }
    } else {
        skipped("hugetlb needs root, to fill the pool");
    }
    match Primed::new(program) {
        Ok(primed) => body(&Way { program: primed.path().to_owned(), ..way("pagecache") }),
        Err(why) => skipped(&why),
    }
    match tempfile::TempDir::new_in("/dev/shm") {
        Ok(dir) => body(&Way { store: Some(dir.path().join("store")), ..way("shared") }),
        Err(why) => skipped(&format!("/dev/shm: {why}")),
    }
}
