// SPDX-License-Identifier: Apache-2.0
//! Programs that fill a hash, then look up keys at random for as long as asked: what they mapped themselves decides how fast
//! they are.
//!
//! Each has two words: how many keys it fills in, and how many parts of its work it does. It prints the sum so far after each
//! part, so that a counter of its system calls counts its work.

use crate::programs::built;
use anyhow::Result;
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What a program has to do.
#[derive(Clone, Copy)]
pub struct Work {
    /// The keys of its hash. They are among twice as many numbers, so that each second look-up finds one.
    pub keys: u64,
    /// The look-ups, rounded up to parts of 1000 (of Go and the JVM: 5000).
    pub gets: u64,
}

impl Work {
    /// Returns work that does not end while it is measured.
    pub const fn endless(keys: u64) -> Work {
        Work { keys, gets: 1 << 40 }
    }

    fn words(self, part: u64) -> [String; 2] {
        [self.keys.to_string(), self.gets.div_ceil(part).to_string()]
    }
}

const PART: u64 = 1000;
/// The faster ones have larger parts: a part should be long beside the system call at its end.
const LARGE_PART: u64 = 5000;

const PERL: &str = "my ($k, $p) = @ARGV; my $m = 2 * $k + 1; my %h; $h{($_ * 7919) % $m} = $_ for 1 .. $k; \
    my ($s, $i) = (0, 0); $| = 1; for (1 .. $p) { \
    for (1 .. 1000) { $i++; $s += $h{($i * 104729) % $m} // 0 } print qq($s\\n) }";
const PHP: &str = "ini_set('memory_limit', -1); [, $k, $p] = $argv; $m = 2 * $k + 1; $h = []; \
    for ($i = 0; $i < $k; $i++) $h['k' . ($i * 7919) % $m] = $i; $s = 0; $i = 0; for ($n = 0; $n < $p; $n++) { \
    for ($j = 0; $j < 1000; $j++) { $i++; $s += $h['k' . ($i * 104729) % $m] ?? 0; } echo $s, PHP_EOL; }";
const PYTHON: &str = "import sys\nk, p = map(int, sys.argv[1:])\nm, s = 2 * k + 1, 0\n\
    h = {(i * 7919) % m: i for i in range(k)}\nfor n in range(p):\n \
    s += sum(h.get((i * 104729) % m, 0) for i in range(n * 1000, n * 1000 + 1000))\n print(s, flush=True)";
const GO: &str = "package main\nimport (\n\t\"os\"\n\t\"strconv\"\n)\nfunc main() {\n\tk, _ := strconv.Atoi(os.Args[1])\n\
    \tp, _ := strconv.Atoi(os.Args[2])\n\tm, s, h := 2*k+1, 0, map[int]int{}\n\
    \tfor i := 0; i < k; i++ {\n\t\th[i*7919%m] = i\n\t}\n\tfor n := 0; n < p; n++ {\n\
    \t\tfor i := n * 5000; i < n*5000+5000; i++ {\n\t\t\ts += h[i*104729%m]\n\t\t}\n\
    \t\tos.Stdout.WriteString(strconv.Itoa(s) + \"\\n\")\n\t}\n}\n";
const JAVA: &str = "class Hash {\n\tpublic static void main(String[] a) {\n\
    \t\tlong k = Long.parseLong(a[0]), p = Long.parseLong(a[1]), m = 2 * k + 1, s = 0;\n\
    \t\tjava.util.HashMap<Long, Long> h = new java.util.HashMap<>();\n\
    \t\tfor (long i = 0; i < k; i++) h.put(i * 7919 % m, i);\n\t\tfor (long n = 0; n < p; n++) {\n\
    \t\t\tfor (long i = n * 5000; i < n * 5000 + 5000; i++) s += h.getOrDefault(i * 104729 % m, 0L);\n\
    \t\t\tSystem.out.println(s);\n\t\t}\n\t}\n}\n";
const NODE: &str = "const [k, p] = process.argv.slice(1).map(Number), m = 2 * k + 1, h = new Map(); \
    for (let i = 0; i < k; i++) h.set(i * 7919 % m, i); let s = 0, i = 0; for (let n = 0; n < p; n++) { \
    for (let j = 0; j < 1000; j++) { i++; s += h.get(i * 104729 % m) ?? 0 } require('fs').writeSync(1, s + '\\n') }";
const AWK: &str = "BEGIN { m = 2 * k + 1; for (i = 0; i < k; i++) h[i * 7919 % m] = i; i = 0; \
    for (n = 0; n < p; n++) { for (j = 0; j < 1000; j++) { i++; x = i * 104729 % m; if (x in h) s += h[x] } \
    print s; fflush() } }";

/// Returns perl with a hash.
pub fn perl(work: Work) -> Program {
    with_words(Program::new(["perl", "-e", PERL]), work, PART)
}

/// Returns php with an array. Its keys are strings.
pub fn php(work: Work) -> Program {
    with_words(Program::new(["php", "-d", "opcache.enable_cli=0", "-r", PHP]), work, PART)
}

/// Returns Python with a dict.
pub fn python(work: Work) -> Program {
    with_words(Program::new(["python3", "-c", PYTHON]), work, PART)
}

/// Returns node with a Map.
pub fn node(work: Work) -> Program {
    with_words(Program::new(["node", "-e", NODE]), work, PART)
}

/// Returns mawk with an array.
pub fn mawk(work: Work) -> Program {
    let [keys, parts] = work.words(PART);
    Program::new([
        "mawk".into(),
        "-v".into(),
        format!("k={keys}"),
        "-v".into(),
        format!("p={parts}"),
        AWK.into(),
    ])
}

/// Returns a program in Go with a map, which is compiled in a folder.
///
/// # Errors
/// There is no go, or it fails.
pub fn go(dir: &Path, work: Work) -> Result<Program> {
    let (source, path) = (dir.join("hash.go"), dir.join("hash"));
    fs::write(&source, GO)?;
    built(Command::new("go").arg("build").arg("-o").arg(&path).arg(&source).env("GO111MODULE", "off"))?;
    Ok(with_words(Program::new([path]), work, LARGE_PART))
}

/// Returns the JVM, started with these options, with a HashMap. Its class is compiled in a folder.
///
/// # Errors
/// There is no javac, or it fails.
pub fn java(dir: &Path, options: &[&str], work: Work) -> Result<Program> {
    let source = dir.join("Hash.java");
    fs::write(&source, JAVA)?;
    built(Command::new("javac").arg("-d").arg(dir).arg(&source))?;
    let words = std::iter::once(&"java").chain(options).map(OsString::from);
    let program = Program::new(words.chain(["-cp".into(), dir.into(), "Hash".into()]));
    Ok(with_words(program, work, LARGE_PART))
}

fn with_words(program: Program, work: Work, part: u64) -> Program {
    work.words(part).iter().fold(program, |program, word| program.arg(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_each_program_ends_and_prints_a_sum_after_each_part() {
        let work = Work { keys: 1000, gets: 6000 };
        let dir = tempfile::tempdir().unwrap();
        let made = [
            (perl(work), 6),
            (php(work), 6),
            (python(work), 6),
            (node(work), 6),
            (mawk(work), 6),
            (go(dir.path(), work).unwrap_or_default(), 2),
            (java(dir.path(), &["-XX:+UseSerialGC"], work).unwrap_or_default(), 2),
        ];
        for (program, parts) in made {
            // What is not installed is not tried.
            let Some(mut command) = program.command().ok() else { continue };
            let Ok(out) = command.stdout(std::process::Stdio::piped()).output() else { continue };
            let printed = String::from_utf8(out.stdout).unwrap();
            let sums: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
            assert!(out.status.success() && sums.len() == parts, "{program}: {printed}");
            assert!(sums.is_sorted() && sums[0] > 0, "{program}: {printed}");
        }
    }
}
