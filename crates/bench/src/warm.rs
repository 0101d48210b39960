// SPDX-License-Identifier: Apache-2.0
//! Compares the second start of a program, from the store or a primed page cache, with its bare start; and many
//! short compilations, which could only lose time at the start.

use crate::options::Options;
use crate::programs::{find_clang, hugelift, under_hugelift};
use anyhow::{Context as _, Result};
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 100;
const GOAL_MS: f64 = 2.0;
const COMPILE_ROUNDS: usize = 10;
const FILES: usize = 50;
const COMPILE_GOAL: f64 = 1.0;
const SHARED: [&str; 3] = ["--quiet", "--backing", "shared"];
/// Options for `auto`, which prefers the page cache after `hugelift prime`. The bare start then has huge pages
/// too.
const PRIMED: [&str; 1] = ["--quiet"];

/// A store for one benchmark. It is removed when the value is dropped.
pub struct TempStore(tempfile::TempDir);

impl TempStore {
    /// Makes an empty store.
    ///
    /// # Errors
    /// There is no tmpfs on /dev/shm.
    pub fn new() -> Result<TempStore> {
        Ok(TempStore(tempfile::TempDir::new_in("/dev/shm").context("no tmpfs on /dev/shm")?))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Runs the program once, which fills the store, and returns it lifted from the store.
    ///
    /// # Errors
    /// The run failed.
    pub fn filled(&self, program: &Program) -> Result<Program> {
        let lifted = self.lifted(program, &[])?;
        lifted.run()?;
        Ok(lifted)
    }

    /// Returns `program` under `hugelift run` with `options` and this store.
    fn with(&self, program: &Program, options: &[&str]) -> Result<Program> {
        let mut lifted = under_hugelift(program, options)?;
        lifted.env.push(("HUGELIFT_STORE".into(), self.path().into()));
        Ok(lifted)
    }

    /// Returns `program` lifted from this store, with further `options` of `hugelift run`.
    ///
    /// # Errors
    /// The hugelift to measure does not exist.
    pub fn lifted(&self, program: &Program, options: &[&str]) -> Result<Program> {
        self.with(program, &[&SHARED, options].concat())
    }
}

/// Prints the milliseconds that a warm start adds to several large programs.
///
/// # Errors
/// A run failed.
pub fn start(options: &Options) -> Result<()> {
    println!("\nwarm start from the store, wall time in ms");
    table(options, &SHARED, |_| Ok(()))
}

/// Prints the same as [`start`] with a primed page cache, which also makes the bare start faster. Must run
/// after [`compile`], whose bare compiler must not be primed.
///
/// # Errors
/// A run failed.
pub fn start_primed(options: &Options) -> Result<()> {
    println!("\nwarm start after hugelift prime --with-libs, wall time in ms");
    table(options, &PRIMED, |path| {
        // The column of huge pages shows what could not be primed.
        Command::new(hugelift()?).args(["prime", "--with-libs"]).arg(path).output()?;
        Ok(())
    })
}

/// Prints a line for each installed program, started with `words` after `prepare`.
fn table(options: &Options, words: &[&str], prepare: impl Fn(&Path) -> Result<()>) -> Result<()> {
    println!("  program    MB huge     bare ms  added ms (goal: at most {GOAL_MS:.0})  added ms of CPU time");
    let rustc = || {
        let out = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
        let root = String::from_utf8(out.stdout).ok()?;
        Some(Path::new(root.trim()).join("bin/rustc")).filter(|path| path.is_file())
    };
    let programs = [
        ("clang++", find_clang(), "--version"),
        ("node", find("node"), "--version"),
        ("mariadbd", find("mariadbd"), "--version"),
        ("rustc", rustc(), "-vV"),
    ];
    for (name, path, argument) in programs {
        let Some(path) = path else {
            println!("  SKIP: no {name}: ci/setup.sh test");
            continue;
        };
        let bare = Program::new([path.clone()]).arg(argument);
        prepare(&path)?;
        let store = TempStore::new()?;
        let lifted = store.with(&bare, words)?;
        lifted.run()?;
        let mut sides = [Side::new("bare", || bare.run()), Side::new("lifted", || lifted.run())];
        let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
        let ms = |sample: &Sample| sample.cost.wall * 1e3;
        let alone: Vec<f64> = results[0].iter().map(ms).collect();
        println!(
            "  {name:<9}  {:<10}  {:>7.1}  {:.2}  {:.2}",
            huge(&store, &bare, words)?,
            stats::median(&alone)?,
            stats::difference(&pairs(&results[0], &results[1], ms))?,
            stats::difference(&pairs(&results[0], &results[1], |sample| sample.cost.cpu() * 1e3))?
        );
    }
    Ok(())
}

/// Returns the megabytes of code and constants that a further start has on huge pages, and those that could be.
fn huge(store: &TempStore, program: &Program, words: &[&str]) -> Result<String> {
    let report = tempfile::NamedTempFile::new().context("a temporary file")?;
    let path = report.path().to_str().context("a path in UTF-8")?;
    store.with(program, &[words, &["--report", path]].concat())?.run()?;
    let seen: serde_json::Value =
        serde_json::from_reader(report.as_file()).context("the report of a start")?;
    let sum = |key: &str| -> u64 {
        ["text", "rodata"].iter().filter_map(|part| seen["totals"][part][key].as_u64()).sum::<u64>() >> 20
    };
    Ok(format!("{} of {}", sum("huge_bytes"), sum("liftable_bytes")))
}

/// Prints how long clang takes for many small files, lifted from the store, compared with bare.
///
/// # Errors
/// A run failed.
pub fn compile(options: &Options) -> Result<()> {
    let Some(clang) = find_clang() else {
        println!("\nSKIP: no clang++ in PATH: ci/setup.sh test");
        return Ok(());
    };
    let store = TempStore::new()?;
    let sources = tempfile::TempDir::new()?;
    for n in 0..FILES {
        let text = format!(
            "#include <stdio.h>\n#include <string.h>\nint f{n}(const char *s, int k) {{\n\
             \tint sum = 0;\n\tfor (const char *p = s; *p; p++)\n\t\tsum += *p * (k + {n});\n\
             \tprintf(\"%d %zu\\n\", sum, strlen(s));\n\treturn sum;\n}}\n"
        );
        std::fs::write(sources.path().join(format!("f{n}.c")), text)?;
    }
    let one = |n: usize| {
        let object = sources.path().join(format!("f{n}.o"));
        let words = ["-x", "c", "-O1", "-c", "-o"];
        let mut program = Program::new([clang.clone()]);
        program.argv.extend(words.iter().map(Into::into));
        program.argv.extend([object.into(), sources.path().join(format!("f{n}.c")).into()]);
        program
    };
    store.filled(&one(0))?;
    // Wall and CPU time in seconds.
    let all = |lift: bool| -> Result<(f64, f64)> {
        let (mut wall, mut cpu) = (0.0, 0.0);
        for n in 0..FILES {
            let program = if lift { store.lifted(&one(n), &[])? } else { one(n) };
            let cost = program.run()?.cost;
            wall += cost.wall;
            cpu += cost.cpu();
        }
        Ok((wall, cpu))
    };
    let mut sides = [Side::new("bare", || all(false)), Side::new("lifted", || all(true))];
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(COMPILE_ROUNDS), |_, _, _| {})?;
    let (wall, cpu) = (|times: &(f64, f64)| times.0, |times: &(f64, f64)| times.1);
    let bare: Vec<f64> = results[0].iter().map(wall).collect();
    println!(
        "\n{FILES} small C files compiled by clang, one process each; bare: {:.2} s",
        stats::median(&bare)?
    );
    println!(
        "  lifted from the store: wall {:.3}, CPU {:.3} of bare  goal: at most {COMPILE_GOAL}",
        stats::ratio(&pairs(&results[0], &results[1], wall))?,
        stats::ratio(&pairs(&results[0], &results[1], cpu))?
    );
    Ok(())
}

fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}
