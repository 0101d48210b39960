// SPDX-License-Identifier: Apache-2.0
//! The second start of a program from the store of shared code, against its bare start; and
//! many short compilations, where nothing but the start could be lost.

use crate::copy::find_clang;
use crate::{Options, under_hugelift};
use anyhow::{Context as _, Result};
use hugelift_core::stats;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 100;
const GOAL_MS: f64 = 2.0;
const COMPILE_ROUNDS: usize = 10;
const FILES: usize = 50;
const COMPILE_GOAL: f64 = 1.0;
const SHARED: [&str; 3] = ["--quiet", "--backing", "shared"];

/// A store of the benchmark's own, gone at its end.
pub struct Shelf(tempfile::TempDir);

impl Shelf {
    /// # Errors
    /// There is no tmpfs to have it on.
    pub fn new() -> Result<Shelf> {
        Ok(Shelf(tempfile::TempDir::new_in("/dev/shm").context("no tmpfs on /dev/shm")?))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// The program lifted from this store, which has all of it from now on.
    ///
    /// # Errors
    /// The first run failed.
    pub fn stocked(&self, program: &Program) -> Result<Program> {
        let lifted = self.lifted(program)?;
        lifted.run()?;
        Ok(lifted)
    }

    /// The program lifted from this store, with whatever that has.
    ///
    /// # Errors
    /// There is no hugelift.
    pub fn lifted(&self, program: &Program) -> Result<Program> {
        let mut lifted = under_hugelift(program, &SHARED)?;
        lifted.env.push(("HUGELIFT_STORE".into(), self.path().into()));
        Ok(lifted)
    }

    /// Bytes of its entries.
    fn bytes(&self) -> Result<u64> {
        let sizes = std::fs::read_dir(self.path())?.map(|entry| {
            use std::os::unix::fs::MetadataExt as _;
            Ok(entry?.metadata()?.blocks() * 512)
        });
        sizes.sum()
    }
}

/// Prints the milliseconds that a warm start adds to each of several large programs.
///
/// # Errors
/// A run failed.
pub fn start(options: &Options) -> Result<()> {
    println!("\nwarm start from the store, wall time in ms");
    println!("  program    bare ms  stored MB  added ms (goal: at most {GOAL_MS:.0})  added ms of CPU time");
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
        let bare = Program::new([path]).arg(argument);
        let shelf = Shelf::new()?;
        let lifted = shelf.stocked(&bare)?;
        let mut sides = [Side::new("bare", || bare.run()), Side::new("lifted", || lifted.run())];
        let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, _, _| {})?;
        let ms = |sample: &Sample| sample.cost.wall * 1e3;
        let alone: Vec<f64> = results[0].iter().map(ms).collect();
        println!(
            "  {name:<9}  {:>7.1}  {:>9}  {:.2}  {:.2}",
            stats::median(&alone)?,
            shelf.bytes()? >> 20,
            stats::difference(&pairs(&results[0], &results[1], ms))?,
            stats::difference(&pairs(&results[0], &results[1], |sample| sample.cost.cpu() * 1e3))?
        );
    }
    Ok(())
}

/// Prints how long clang takes for many small files, lifted from the store, against bare.
///
/// # Errors
/// A run failed.
pub fn compile(options: &Options) -> Result<()> {
    let Some(clang) = find_clang() else {
        println!("\nSKIP: no clang++ in PATH: ci/setup.sh test");
        return Ok(());
    };
    let shelf = Shelf::new()?;
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
    shelf.stocked(&one(0))?;
    // Wall and CPU time in seconds.
    let all = |lift: bool| -> Result<(f64, f64)> {
        let (mut wall, mut cpu) = (0.0, 0.0);
        for n in 0..FILES {
            let program = if lift { shelf.lifted(&one(n))? } else { one(n) };
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
