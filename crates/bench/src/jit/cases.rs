// SPDX-License-Identifier: Apache-2.0
//! The programs that make their code while they run. Each takes the course that `warmed` describes.

use super::generated;
use crate::programs::built;
use anyhow::Result;
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

/// TypeScript's compiler, where Debian has it.
const TYPESCRIPT: &str = "/usr/share/nodejs/typescript/lib/typescript.js";

/// A program, and the ways to put its code on huge pages.
pub struct Case {
    /// What it does, as printed.
    pub what: &'static str,
    /// The program as it is.
    pub program: Program,
    /// The name for `hugelift attach --parts` of the part in which its code is.
    pub parts: &'static str,
    /// Its own ways.
    pub own: Vec<Own>,
}

/// A program with its own switch for huge pages.
pub struct Own {
    /// The name of the switch.
    pub switch: &'static str,
    /// The program with it.
    pub program: Program,
    /// The bytes of the pool that it needs, if it uses one.
    pub pool: u64,
}

/// Makes a program, in a folder for what it needs.
type Make = fn(&Path) -> Result<Case>;

/// The programs, each with what it needs.
pub const CASES: [(&str, Make); 5] =
    [("java", java), ("typescript", typescript), ("php", php), ("luajit", luajit), ("erl", erlang)];

/// Returns the package of Debian that is missing for a case.
pub fn missing(needs: &str) -> Option<&'static str> {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let (is_here, package) = match needs {
        "java" => (has("java") && has("javac"), "openjdk-17-jdk-headless"),
        "typescript" => (has("node") && Path::new(TYPESCRIPT).exists(), "nodejs node-typescript"),
        "php" => (has("php"), "php-cli"),
        "luajit" => (has("luajit"), "luajit"),
        _ => (has("erlc"), "erlang-base"),
    };
    (!is_here).then_some(package)
}

/// Only the first compiler: the second one takes minutes for as much code. The JVM compiles at once (-Xbatch), so that each
/// method is compiled when the warm-up ends.
fn java(dir: &Path) -> Result<Case> {
    const METHODS: usize = 8;
    let sources = [dir.join("Jit.java"), dir.join("Template.java")];
    fs::write(&sources[0], include_str!("Jit.java"))?;
    fs::write(&sources[1], generated::java(METHODS)?)?;
    built(Command::new("javac").arg("-d").arg(dir).args(&sources))?;
    let with = |more: &[&str]| {
        let words = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Xbatch", "-XX:TieredStopAtLevel=1"];
        let words = words.iter().chain(&["-XX:ReservedCodeCacheSize=256m"]).chain(more).map(OsString::from);
        let work = ["Jit".into(), "1160".into(), METHODS.to_string().into(), "8000000".into()];
        Program::new(words.chain(["-cp".into(), dir.into()]).chain(work))
    };
    let switch = "-XX:+UseTransparentHugePages";
    let own = vec![Own { switch, program: with(&[switch]), pool: 0 }];
    Ok(Case { what: "JVM, 9,280 methods called at random", program: with(&[]), parts: "jit", own })
}

/// Its own switch is for node's text, not for the code that it makes.
fn typescript(dir: &Path) -> Result<Case> {
    let script = dir.join("tsc.js");
    fs::write(&script, include_str!("tsc.js"))?;
    let with = |more: &[&str]| {
        let words = ["node"].iter().chain(more).map(OsString::from);
        Program::new(words.chain([script.clone().into(), TYPESCRIPT.into(), "6".into(), "3".into()]))
    };
    let switch = "--use-largepages=silent";
    let own = vec![Own { switch, program: with(&[switch]), pool: 0 }];
    Ok(Case { what: "node, TypeScript checks types", program: with(&[]), parts: "jit", own })
}

/// PHP has the code of its JIT in shared memory, behind that of opcache. If a pool has enough for both, PHP takes it from there
/// without being asked. Its switch is for PHP's text.
fn php(dir: &Path) -> Result<Case> {
    const FUNCTIONS: usize = 6000;
    // 128 MB of opcache, which is the default, and the code.
    const POOL: u64 = 192 << 20;
    let (script, functions) = (dir.join("calls.php"), dir.join("functions.php"));
    fs::write(&script, include_str!("calls.php"))?;
    fs::write(&functions, generated::php(FUNCTIONS)?)?;
    let with = |more: &[&str]| {
        // Files that are new are not compiled, and by default no more than 1024 traces are made.
        let settings = [
            "opcache.enable_cli=1",
            "opcache.file_update_protection=0",
            "opcache.jit=tracing",
            "opcache.jit_buffer_size=64M",
            "opcache.jit_max_root_traces=50000",
            "opcache.jit_max_side_traces=50000",
            "opcache.jit_max_exit_counters=500000",
        ];
        let settings = settings.iter().chain(more).flat_map(|setting| ["-d", setting].map(OsString::from));
        let work = [script.clone().into(), functions.clone().into(), FUNCTIONS.to_string().into()];
        Program::new(["php".into()].into_iter().chain(settings).chain(work).chain(["600000".into()]))
    };
    let switch = "opcache.huge_code_pages=1";
    let own = vec![
        Own { switch, program: with(&[switch]), pool: 0 },
        Own { switch: "a hugetlb pool", program: with(&[]), pool: POOL },
    ];
    Ok(Case { what: "php, 6,000 functions called at random", program: with(&[]), parts: "shm", own })
}

fn luajit(dir: &Path) -> Result<Case> {
    let script = dir.join("calls.lua");
    fs::write(&script, include_str!("calls.lua"))?;
    let words = ["luajit", "-Omaxmcode=65536", "-Omaxtrace=60000"].map(OsString::from);
    let program = Program::new(words.into_iter().chain([script.into(), "3000".into(), "2000000".into()]));
    Ok(Case { what: "LuaJIT, 3,000 functions called at random", program, parts: "jit", own: vec![] })
}

/// Erlang maps its code twice from a memfd, to write it and to execute it.
fn erlang(dir: &Path) -> Result<Case> {
    const FUNCTIONS: usize = 3000;
    let sources = [dir.join("calls.erl"), dir.join("many.erl")];
    fs::write(&sources[0], include_str!("calls.erl"))?;
    fs::write(&sources[1], generated::erlang(FUNCTIONS)?)?;
    built(Command::new("erlc").arg("-o").arg(dir).args(&sources))?;
    let words = ["erl", "-noshell", "-pa"].map(OsString::from).into_iter().chain([dir.into()]);
    let run = ["-run", "calls", "main", &FUNCTIONS.to_string(), "15000000"].map(OsString::from);
    let what = "Erlang, 3,000 functions called at random";
    Ok(Case { what, program: Program::new(words.chain(run)), parts: "shm", own: vec![] })
}
