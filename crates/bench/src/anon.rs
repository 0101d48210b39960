// SPDX-License-Identifier: Apache-2.0
//! Measures what huge pages for anonymous memory bring to programs that mapped it themselves: bare, collapsed by
//! `hugelift attach` after the first seconds, with the switch of the program's own allocator, and with transparent huge pages for
//! every program of the machine.

use crate::options::Options;
use crate::programs::hugelift;
use anyhow::{Context as _, Result, ensure};
use hugelift_lab::setting::Setting;
use hugelift_measure::program::Program;
use hugelift_measure::rounds::{self, Side, pairs};
use hugelift_measure::sample::Sample;
use hugelift_measure::stats;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const ROUNDS: usize = 6;
/// Which programs get transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Starts a program, and hugelift after some seconds. The shell waits for both, so that its CPU time is that of both.
const BESIDE: &str = r#"hugelift=$1 seconds=$2; shift 2; "$@" & pid=$!; sleep $seconds
"$hugelift" attach --parts heap,anon --cpu-budget 10 --add 512M $pid >/dev/null 2>&1; wait $pid"#;
/// Part of a bare run after which a program has its memory.
const BUILT: f64 = 0.4;

const PERL: &str = "my %h; $h{($_ * 7919) % 4000037} = $_ for 1 .. 1500000; my $s = 0; \
    for my $n (1 .. 4) { $s += $h{($_ * 104729) % 4000037} // 0 for 1 .. 1500000 } print qq($s\\n)";
const PHP: &str = "ini_set('memory_limit', -1); $h = []; \
    for ($i = 0; $i < 2500000; $i++) $h['k' . ($i * 7919) % 8000009] = $i; $s = 0; \
    for ($n = 0; $n < 3; $n++) for ($i = 0; $i < 2500000; $i++) $s += $h['k' . ($i * 104729) % 8000009] ?? 0; \
    echo $s, PHP_EOL;";
const PYTHON: &str = "h = {(i * 7919) % 5000011: i for i in range(2500000)}; \
    print(sum(h.get((i * 104729) % 5000011, 0) for n in range(3) for i in range(2500000)))";
const GO: &str = "package main\nfunc main() {\n\th := map[int]int{}\n\
    \tfor i := 0; i < 5000000; i++ {\n\t\th[i*7919%8000009] = i\n\t}\n\ts := 0\n\
    \tfor n := 0; n < 5; n++ {\n\t\tfor i := 0; i < 5000000; i++ {\n\t\t\ts += h[i*104729%8000009]\n\t\t}\n\t}\n\
    \tprintln(s)\n}\n";
const JAVA: &str = "class Anon {\n\tpublic static void main(String[] a) {\n\
    \t\tjava.util.HashMap<Long, Long> h = new java.util.HashMap<>();\n\
    \t\tfor (long i = 0; i < 3000000; i++) h.put(i * 7919 % 6000011, i);\n\t\tlong s = 0;\n\
    \t\tfor (int n = 0; n < 4; n++)\n\t\t\tfor (long i = 0; i < 3000000; i++) s += h.getOrDefault(i * 104729 % 6000011, 0L);\n\
    \t\tSystem.out.println(s);\n\t}\n}\n";

/// A program, and how its own allocator is asked for huge pages.
struct Case {
    what: &'static str,
    program: Program,
    /// The name of the switch, and the program with it.
    own: Option<(&'static str, Program)>,
}

/// Prints for each program the ratio of CPU time of each way to bare. hugelift's own time is included.
///
/// # Errors
/// A run failed, or the sides computed different results.
pub fn run(options: &Options) -> Result<()> {
    let dir = TempDir::new_in(hugelift()?.parent().context("hugelift's folder")?)?;
    println!("\nanonymous memory: CPU time, ratio to bare with transparent huge pages for madvise(2)");
    println!(
        "  program                        bare s  attach                 own switch             THP always"
    );
    for (_, make) in options.chosen(&CASES)? {
        row(options, &make(dir.path())?)?;
    }
    Ok(())
}

/// Makes a program, in a folder for what it needs.
type Make = fn(&Path) -> Result<Case>;

/// The programs, each with the command that it needs.
const CASES: [(&str, Make); 5] =
    [("perl", perl), ("php", php), ("python3", python), ("go", go), ("javac", java)];

fn with(program: &Program, name: &str, value: &str) -> Program {
    let mut more = program.clone();
    more.env.push((name.into(), value.into()));
    more
}

fn perl(_: &Path) -> Result<Case> {
    let program = Program::new(["perl", "-e", PERL]);
    let own = with(&program, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    Ok(Case { what: "perl, a hash of 1.5 M keys", program, own: Some(("glibc.malloc.hugetlb=1", own)) })
}

fn php(_: &Path) -> Result<Case> {
    let program = Program::new(["php", "-d", "opcache.enable_cli=0", "-r", PHP]);
    let own = with(&program, "USE_ZEND_ALLOC_HUGE_PAGES", "1");
    Ok(Case { what: "php, an array of 2.5 M", program, own: Some(("USE_ZEND_ALLOC_HUGE_PAGES=1", own)) })
}

fn python(_: &Path) -> Result<Case> {
    let program = Program::new(["python3", "-c", PYTHON]);
    let own = with(&program, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    Ok(Case { what: "python3, a dict of 2.5 M", program, own: Some(("glibc.malloc.hugetlb=1", own)) })
}

/// Go has had no switch since 1.21.6.
fn go(dir: &Path) -> Result<Case> {
    let (source, path) = (dir.join("anon.go"), dir.join("anon"));
    fs::write(&source, GO)?;
    built(Command::new("go").arg("build").arg("-o").arg(&path).arg(&source).env("GO111MODULE", "off"))?;
    Ok(Case { what: "Go, a map of 5 M", program: Program::new([path]), own: None })
}

fn java(dir: &Path) -> Result<Case> {
    let source = dir.join("Anon.java");
    fs::write(&source, JAVA)?;
    built(Command::new("javac").arg("-d").arg(dir).arg(&source))?;
    let with = |more: &[&str]| {
        let words = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseSerialGC"].iter().chain(more).map(OsString::from);
        Program::new(words.chain(["-cp".into(), dir.into(), "Anon".into()]))
    };
    let switch = "-XX:+UseTransparentHugePages";
    Ok(Case { what: "JVM, a HashMap of 3 M", program: with(&[]), own: Some((switch, with(&[switch]))) })
}

fn built(command: &mut Command) -> Result<()> {
    let out = command.output().with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

fn row(options: &Options, case: &Case) -> Result<()> {
    let Case { what, program, own } = case;
    let mut beside = Program::new(["sh", "-c", BESIDE, "sh"]);
    let alone = during("madvise", || program.run())?;
    beside.argv.extend([hugelift()?.into(), format!("{:.1}", alone.cost.wall * BUILT).into()]);
    beside.argv.extend(program.argv.iter().cloned());
    let mut sides = vec![
        Side::new("bare", || during("madvise", || program.run())),
        Side::new("attach", || during("madvise", || beside.run())),
        Side::new("THP always", || during("always", || program.run())),
    ];
    if let Some((switch, own)) = own {
        sides.push(Side::new(switch, || during("madvise", || own.run())));
    }
    let mut differs = None;
    let results = rounds::run(&mut sides, options.rounds.unwrap_or(ROUNDS), |_, round, _| {
        if let Some(other) = round.iter().find(|sample| sample.output != round[0].output) {
            differs = Some(format!("'{}' and '{}'", round[0].output.trim(), other.output.trim()));
        }
    })?;
    ensure!(differs.is_none(), "{what}: the ways computed {}", differs.unwrap_or_default());
    let cpu = |sample: &Sample| sample.cost.cpu();
    let bare: Vec<f64> = results[0].iter().map(cpu).collect();
    let ratio =
        |side: usize| stats::ratio(&pairs(&results[0], &results[side], cpu)).map(|r| format!("{r:.3}"));
    let of_own = if own.is_some() { ratio(3)? } else { "(has none)".into() };
    println!("  {what:<30} {:>5.2}  {:<22} {of_own:<22} {}", stats::median(&bare)?, ratio(1)?, ratio(2)?);
    Ok(())
}

/// Runs `work` while the machine has this setting. It is put back also if this process is killed.
fn during<T>(word: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let setting = Setting::change(Path::new(SWITCH), word)?;
    let result = work();
    setting.restore()?;
    result
}
