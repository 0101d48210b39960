// SPDX-License-Identifier: Apache-2.0
//! Follows the advice that commands print about real programs of this machine, and reads smaps afterwards.
//!
//! Advice that would change the machine for all (a pool, a switch of sysfs) is not followed, nor `--parts all`, which names
//! parts that may still grow. What would replace a file is followed with `--dry-run`, as it says.

use crate::common::huge::smaps;
use crate::common::{Cmd, HUGELIFT, Held, find};
use crate::skip;
use hugelift_core::smaps::Usage;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program that waits for its stdin.
struct Program {
    words: Vec<String>,
    /// The file that runs.
    file: PathBuf,
}

/// Programs, with arguments with which they read stdin, and some with much memory. Java, whose code is in an object that it
/// opens later, has a test of its own (`pages::issue_29_b5_java`).
const PROGRAMS: &[&[&str]] = &[
    &["sbcl", "--noinform", "--eval", "(defvar *x* (make-array 20000000 :initial-element 7))"],
    &["perl", "-e", "my @x = map { 'x' x 200 } 1..500000; <STDIN>"],
    &["/usr/bin/python3", "-c", "import sys; m = [bytes(1000) for i in range(150000)]; sys.stdin.read()"],
    &["node", "-e", "process.stdin.resume()"],
    &["php", "-r", "$x = str_repeat('x', 100000000); fgets(STDIN);"],
    &["gdb", "-q", "-nx"],
    &["sqlite3"],
    &["git", "cat-file", "--batch"],
    &["bash", "-c", "read x"],
    &["gawk", "{ print }"],
    &["bc", "-q"],
    &["tclsh"],
    &["gofmt"],
    &["cc1", "-quiet", "-o", "/dev/null", "-"],
    &["m4"],
    &["sed", "-n", "p"],
];

impl Program {
    /// Returns the program, if it is installed and an ELF file.
    fn new(words: &[&str]) -> Option<Program> {
        let gcc = Command::new("gcc").arg(format!("-print-prog-name={}", words[0])).output().ok();
        let of_gcc = gcc.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()));
        let path = find(words[0]).or(of_gcc.filter(|path| path.is_absolute()))?;
        let file = path.canonicalize().ok()?;
        let is_elf = std::fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
        let rest = words[1..].iter().map(ToString::to_string);
        let words = std::iter::once(path.to_str()?.to_string()).chain(rest).collect();
        is_elf.then_some(Program { words, file })
    }

    fn start(&self) -> Held {
        let cmd = Cmd::new(&self.words);
        Held::start(&cmd, None, &self.file)
    }
}

fn hugelift(words: &[&str]) -> String {
    let out = Command::new(HUGELIFT).args(words).stdin(Stdio::null()).output().expect("start hugelift");
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Returns all bytes of a process that are on huge pages.
fn huge(pid: u32) -> u64 {
    smaps(pid).iter().map(Usage::huge).sum()
}

/// Returns the commands in a text: from the word `hugelift` to the end of a clause outside of quotes.
fn commands(text: &str) -> Vec<Vec<String>> {
    const VERBS: &[&str] = &["attach", "run", "prime", "inspect"];
    let after = text.match_indices("hugelift ").map(|(at, word)| &text[at + word.len()..]);
    let is_command = |rest: &&str| VERBS.iter().any(|verb| rest.starts_with(&format!("{verb} ")));
    after.filter(is_command).map(words_of_shell).collect()
}

/// Splits a command as a shell does, up to the end of the clause.
fn words_of_shell(text: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' => is_quoted = !is_quoted,
            '\\' if !is_quoted => word.extend(rest.next()),
            _ if is_quoted => word.push(c),
            ';' | '\n' => break,
            ',' if rest.peek().is_none_or(|next| next.is_whitespace()) => break,
            ' ' => {
                words.push(std::mem::take(&mut word));
                if matches!(rest.peek(), Some(' ' | '(')) {
                    break;
                }
            }
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    // "hugelift prime FILE makes that huge"
    let end = words.iter().position(|word| word == "makes").unwrap_or(words.len());
    words.truncate(end);
    words
}

/// Returns each advice that is printed about a program and a process of it, with PID in place of the id.
fn advised(program: &Program, pid: u32) -> BTreeSet<Vec<String>> {
    let file = program.file.to_str().expect("UTF-8");
    let id = pid.to_string();
    let mut all = String::new();
    for words in [
        &["inspect", "--json", &id][..],
        &["inspect", "--json", "--parts", "all", &id],
        &["inspect", "--json", "--page-size", "1G", &id],
        &["doctor", "--json", "--pid", &id],
    ] {
        let out = hugelift(words);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words:?}: {e}: {out}"));
        strings(&report, &mut all);
    }
    for words in [
        &["attach", "--whole", "--dry-run", &id][..],
        &["attach", "--whole", "--dry-run", "--parts", "all", &id],
        &["prime", "--check", file],
        &["inspect", "--page-size", "1G", file],
    ] {
        all += &hugelift(words);
    }
    commands(&all)
        .into_iter()
        .map(|words| words.into_iter().map(|w| if w == id { "PID".into() } else { w }).collect())
        .collect()
}

/// Collects the hints of a report, and not what doctor says of other programs.
fn strings(value: &Value, all: &mut String) {
    match value {
        Value::Object(map) => {
            for key in ["hint", "advice", "how"] {
                if let Some(text) = map.get(key).and_then(Value::as_str) {
                    all.push_str(&format!("{text}\n"));
                }
            }
            map.iter().filter(|(key, _)| *key != "worth").for_each(|(_, value)| strings(value, all));
        }
        Value::Array(list) => list.iter().for_each(|value| strings(value, all)),
        _ => {}
    }
}

/// Returns whether an advice is followed here.
fn is_followed(words: &[String]) -> bool {
    let has = |word: &str| words.iter().any(|one| one == word);
    !(has("all") && words[0] == "run" || has("--replace") && !has("--separate") || has("--help"))
}

/// Follows one advice: about a process in that process. Returns what is wrong with it.
fn follow(program: &Program, words: &[String], held: &Held, bare: u64) -> Result<(), String> {
    let own: Vec<&str> = words.iter().map(String::as_str).collect();
    match own[0] {
        "attach" => {
            let id = held.pid().to_string();
            // One advice is for the code in use, and another for all: the one before may have lifted both. What is primed
            // meanwhile is huge without a copy, so that the start is what counts.
            hugelift(&["restore", &id]);
            let own: Vec<&str> = own.iter().map(|word| if *word == "PID" { &id } else { *word }).collect();
            // These programs wait: none of their code is in use.
            let rest: Vec<&str> = own[1..].iter().copied().filter(|word| *word != "--whole").collect();
            let said = hugelift(&[&["attach", "--whole"], &rest[..]].concat());
            let after = huge(held.pid());
            if after > bare { Ok(()) } else { Err(format!("{bare} bytes were huge, then {after}: {said}")) }
        }
        "run" => {
            let eager = [&[HUGELIFT, "run", "--eager"], &own[1..]].concat();
            let held = Held::start(&Cmd::new(&eager), None, &program.file);
            let after = huge(held.pid());
            let said = held.finish().stderr;
            if after > bare { Ok(()) } else { Err(format!("{bare} bytes were huge, now {after}: {said}")) }
        }
        "prime" => {
            let replaces = own.contains(&"--replace");
            let words = if replaces { [&own[..], &["--dry-run"]].concat() } else { own };
            let out = Command::new(HUGELIFT).args(&words).stdin(Stdio::null()).output().expect("hugelift");
            let said = String::from_utf8_lossy(&out.stdout);
            let brings = said.contains(" on ") && !said.contains(" 0 B on ");
            // It may say itself why it does nothing.
            let answers = ["in use by ", "fixed addresses", " names (hard links)"];
            let explains = answers.iter().any(|answer| said.contains(answer));
            match explains || out.status.success() && (!replaces || brings) {
                true => Ok(()),
                false => Err(format!("{out:?}")),
            }
        }
        _ => {
            let out = hugelift(&own);
            if out.is_empty() { Err("it says nothing".into()) } else { Ok(()) }
        }
    }
}

#[test]
fn issue_29_b9_each_advice_about_real_programs_is_followed_and_changes_something() {
    let programs: Vec<Program> = PROGRAMS.iter().filter_map(|words| Program::new(words)).collect();
    if programs.is_empty() {
        skip!("none of the programs is installed");
    }
    let (mut followed, mut wrong) = (0, Vec::new());
    for program in &programs {
        let held = program.start();
        let bare = huge(held.pid());
        let all = advised(program, held.pid());
        for words in all.iter().filter(|words| is_followed(words)) {
            eprintln!("{}: hugelift {}", program.file.display(), words.join(" "));
            followed += 1;
            if let Err(why) = follow(program, words, &held, bare) {
                eprintln!("  {why}");
                wrong.push(format!("{}: hugelift {}: {why}", program.file.display(), words.join(" ")));
            }
        }
    }
    eprintln!("{} programs, {followed} advices", programs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed > 0, "no advice was given");
}

#[test]
fn issue_29_b9_memory_that_is_code_at_once_gets_no_advice_for_memory() {
    let Some(program) = Program::new(PROGRAMS[0]) else { skip!("needs sbcl") };
    let held = program.start();
    let id = held.pid().to_string();
    for words in [
        &["attach", "--whole", "--dry-run", &id][..],
        &["attach", "--whole", "--dry-run", "--parts", "all", &id],
    ] {
        let said = hugelift(words);
        assert!(!said.contains("--parts heap,anon"), "{said}");
    }
    let report: Value = serde_json::from_str(&hugelift(&["doctor", "--json", "--pid", &id])).expect("JSON");
    let offers = report["offers"].as_array().expect("offers");
    assert!(offers.iter().all(|offer| offer["on"] != false), "{report}");
    // All commands count the same text.
    let number = |report: &Value, pointer: &str| report.pointer(pointer).and_then(Value::as_u64);
    let inspected: Value = serde_json::from_str(&hugelift(&["inspect", "--json", &id])).expect("JSON");
    let top = hugelift(&["top", "--once", "--json", "--interval", "0.1", "-n", "100000"]);
    let top: Value = serde_json::from_str(&top).expect("JSON");
    let row = top["processes"].as_array().expect("processes").iter().find(|p| p["pid"] == held.pid());
    let row = row.expect("its row");
    assert_eq!(number(row, "/text_bytes"), number(&inspected, "/totals/text/bytes"), "{row}");
}

#[test]
fn issue_29_b9_pages_of_another_size_than_code_moves_to() {
    let program = crate::common::fat("hold").flags(&["-pie", "-fPIE"]).build();
    let program = program.to_str().expect("UTF-8");
    let said = hugelift(&["inspect", "-v", "--page-size", "1G", program]);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("less than one page of 1 GB")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("--separate")), "{said}");
}
