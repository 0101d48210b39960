// SPDX-License-Identifier: Apache-2.0
//! The programs that read data files at random: small ones of our own, built here, around the libraries that are measured. All
//! take the same words (see `reader.h`).

use crate::programs::built;
use anyhow::Result;
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = include_str!("reader.h");
/// Lucene 8, where Debian has it.
const LUCENE: &str = "/usr/share/maven-repo/org/apache/lucene/lucene-core/8.x/lucene-core-8.x.jar";
/// The Python for which Debian has numpy.
const PYTHON: &str = "/usr/bin/python3";

/// A program that is built.
pub struct Reader {
    /// What it does, as printed.
    pub what: &'static str,
    /// What its second way to read is, where it has one.
    pub own: Option<&'static str>,
    words: Vec<OsString>,
}

impl Reader {
    /// Returns the program that does `command` ("make", "read" or "own") in a folder.
    pub fn program(&self, command: &str, folder: &Path) -> Program {
        let more = [command.into(), folder.into()];
        Program::new(self.words.iter().cloned().chain(more))
    }
}

/// Builds a reader in a folder.
pub type Make = fn(&Path) -> Result<Reader>;

/// The readers, each with the library that it needs.
pub const CASES: [(&str, Make); 7] = [
    ("lmdb", lmdb),
    ("sqlite", sqlite),
    ("rocksdb", rocksdb),
    ("numpy", numpy),
    ("geoip", geoip),
    ("lucene", lucene),
    ("gguf", gguf),
];

/// Two of the readers with a file of 4 MB.
pub const SMALL_CASES: [(&str, Make); 2] = [("lmdb", lmdb_small), ("sqlite", sqlite_small)];

/// Returns whether the library of a reader is installed.
pub fn is_here(needs: &str) -> bool {
    let succeeds = |program: &str, words: &[&str]| {
        Command::new(program).args(words).output().is_ok_and(|out| out.status.success())
    };
    let has = |header: &str| succeeds("cc", &["-E", "-include", header, "-x", "c", "/dev/null"]);
    match needs {
        "lmdb" => has("lmdb.h"),
        "sqlite" => has("sqlite3.h"),
        "rocksdb" => has("rocksdb/c.h"),
        "geoip" => has("maxminddb.h"),
        "numpy" => succeeds(PYTHON, &["-c", "import numpy"]),
        "gguf" => llama().join("node_modules/node-llama-cpp").exists() && succeeds("node", &["--version"]),
        _ => Path::new(LUCENE).exists() && succeeds("javac", &["--version"]),
    }
}

fn lmdb(dir: &Path) -> Result<Reader> {
    let words = compiled(dir, include_str!("lmdb.c"), "lmdb", &[])?;
    Ok(Reader { what: "LMDB, gets", own: None, words })
}

fn lmdb_small(dir: &Path) -> Result<Reader> {
    let few = ["-DKEYS=34000", "-DKEYS_IN_TRANSACTION=34000"];
    let words = compiled(dir, include_str!("lmdb.c"), "lmdb", &few)?;
    Ok(Reader { what: "LMDB, gets, a small file", own: None, words })
}

fn sqlite(dir: &Path) -> Result<Reader> {
    let words = compiled(dir, include_str!("sqlite.c"), "sqlite3", &[])?;
    Ok(Reader { what: "SQLite, selects with mmap_size", own: Some("mmap_size=0, a large cache_size"), words })
}

fn sqlite_small(dir: &Path) -> Result<Reader> {
    let words = compiled(dir, include_str!("sqlite.c"), "sqlite3", &["-DROWS=34000"])?;
    Ok(Reader { what: "SQLite, selects with mmap_size, a small file", own: None, words })
}

fn rocksdb(dir: &Path) -> Result<Reader> {
    let words = compiled(dir, include_str!("rocksdb.c"), "rocksdb", &[])?;
    Ok(Reader { what: "RocksDB, gets with allow_mmap_reads", own: Some("a large block cache"), words })
}

fn geoip(dir: &Path) -> Result<Reader> {
    let words = compiled(dir, include_str!("geoip.c"), "maxminddb", &[])?;
    Ok(Reader { what: "libmaxminddb, look-ups of IPv4 addresses", own: None, words })
}

/// numpy advises the kernel to use huge pages for large arrays of its own.
fn numpy(dir: &Path) -> Result<Reader> {
    let script = dir.join("gather.py");
    fs::write(&script, include_str!("gather.py"))?;
    let words = vec![PYTHON.into(), script.into()];
    Ok(Reader { what: "numpy, take from a mapped array", own: Some("np.load without mmap_mode"), words })
}

/// Java's switch for huge pages is for its heap.
fn lucene(dir: &Path) -> Result<Reader> {
    let source = dir.join("Lucene.java");
    fs::write(&source, include_str!("Lucene.java"))?;
    let mut path = dir.as_os_str().to_owned();
    path.push(":");
    path.push(LUCENE);
    built(Command::new("javac").arg("-cp").arg(&path).arg("-d").arg(dir).arg(&source))?;
    let words = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-cp"].map(OsString::from);
    let words = words.into_iter().chain([path, "Lucene".into()]).collect();
    Ok(Reader { what: "Lucene, searches for a term", own: None, words })
}

fn gguf(dir: &Path) -> Result<Reader> {
    let script = dir.join("gguf.mjs");
    fs::write(&script, include_str!("gguf.mjs"))?;
    let mut folder = OsString::from("LLAMA=");
    folder.push(llama());
    let words = vec!["env".into(), folder, "node".into(), script.into()];
    Ok(Reader { what: "llama.cpp, tokens of a GGUF model", own: Some("the model read into memory"), words })
}

/// Returns the folder in which node-llama-cpp is installed: the one that the variable LLAMA names, or that of
/// `ci/real/files prepare`.
fn llama() -> PathBuf {
    std::env::var_os("LLAMA").map(PathBuf::from).unwrap_or_else(|| {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
        cache.join("hugelift/llama")
    })
}

/// Compiles a reader in C with its library. Returns the words that start it.
fn compiled(dir: &Path, source: &str, library: &str, options: &[&str]) -> Result<Vec<OsString>> {
    let (path, program) = (dir.join("reader.c"), dir.join("reader"));
    fs::write(dir.join("reader.h"), HEADER)?;
    fs::write(&path, source)?;
    let mut cc = Command::new("cc");
    cc.arg("-O2").args(options);
    built(cc.arg("-o").args([&program, &path]).arg(format!("-l{library}")))?;
    Ok(vec![program.into()])
}
