// SPDX-License-Identifier: Apache-2.0
//! Tests that bytes from outside reach a terminal only in escaped form.

use crate::common::build::{code_file, must};
use crate::common::{Cmd, HUGELIFT, Held};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Bytes that move the cursor, retitle the window, forge a line, or are not UTF-8.
const EVIL: &[u8] = b"\x1b[2J\x1b]0;title\x07\nforged: line\r\x08\x7f\xc2\x9b31m\xe2\x80\xae\xff\xfe";

fn evil(start: &str, end: &str) -> OsString {
    OsString::from_vec([start.as_bytes(), EVIL, end.as_bytes()].concat())
}

/// A directory with programs that have such bytes in their path, their name, the name of their library
/// and, if broken, the name of their loader.
struct Planted {
    _dir: tempfile::TempDir,
    /// A program that runs.
    program: PathBuf,
    /// A program whose loader and library do not exist.
    broken: PathBuf,
}

fn plant() -> Planted {
    let dir = tempfile::TempDir::new().expect("a directory");
    let folder = dir.path().join(evil("d", ""));
    std::fs::create_dir(&folder).expect("a directory");
    let fat = format!(
        "__asm__(\".pushsection .text\\n.balign 64\\n.incbin \\\"{}\\\"\\n.popsection\\n\");\n",
        code_file(6 << 20).display()
    );
    let source = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, fat.clone() + text).expect("write the source");
        path
    };
    let library_source = source("library.c", "int evil(void) { return 3; }\n");
    let main = source(
        "main.c",
        "#include <unistd.h>\nint evil(void);\n\
         int main(void) { char c; while (read(0, &c, 1) > 0) ; return evil() - 3; }\n",
    );
    let option = |option: &str, value: &OsStr| {
        let mut word = OsString::from(option);
        word.push(value);
        word
    };
    let library = |name: &OsStr| {
        let path = folder.join(name);
        let soname = option("-Wl,-soname,", name);
        must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(soname).arg(&library_source));
        path
    };
    let there = library(&evil("lib", ".so"));
    let program = folder.join(evil("p", ""));
    // $ORIGIN and not the folder's path, whose colon would end the entry.
    let rpath = option("-Wl,-rpath,", OsStr::new("$ORIGIN"));
    must(Command::new("cc").arg("-o").arg(&program).arg(&main).arg(&there).arg(rpath));
    let gone = library(&evil("gone", ".so"));
    let broken = folder.join(evil("b", ""));
    let loader = option("-Wl,--dynamic-linker=", &evil("/no/", "/loader"));
    must(Command::new("cc").arg("-o").arg(&broken).arg(&main).arg(&gone).arg(loader));
    std::fs::remove_file(gone).expect("remove the library");
    Planted { _dir: dir, program, broken }
}

fn hugelift(words: &[&OsStr]) -> Output {
    let out = Command::new(HUGELIFT).args(words).stdin(Stdio::null()).output().expect("start hugelift");
    for (which, bytes) in [("stdout", &out.stdout), ("stderr", &out.stderr)] {
        check(&format!("{which} of {words:?}"), bytes);
    }
    // Only hugelift run may print nothing: it does when the program starts as requested.
    let is_silent = out.stdout.is_empty() && out.stderr.is_empty();
    assert!(!is_silent || words[0] == "run", "hugelift {words:?} prints nothing");
    out
}

/// Checks that the text has no control characters except line feeds and tabs, and no line forged by a name.
fn check(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{what}: {e}: {}", bytes.escape_ascii()));
    let bad = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}';
    assert!(!text.contains(bad), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{what}: {text}");
}

/// Returns the words of a command with `{}` replaced by the program's path.
fn command<'a>(line: &'a str, program: &'a Path) -> Vec<&'a OsStr> {
    let word = |w: &'a str| if w == "{}" { program.as_os_str() } else { OsStr::new(w) };
    line.split(' ').map(word).collect()
}

#[test]
fn every_string_of_a_planted_program_is_escaped() {
    let planted = plant();
    for program in [&planted.program, &planted.broken] {
        for line in [
            "inspect {}",
            "inspect -v --parts all {}",
            "inspect --json {}",
            "inspect --html - {}",
            "prime --check --with-libs -v {}",
            "prime --check --with-libs --json {}",
            "prime --restore {}",
            "pool need {}",
            "pool need --json {}",
            "run --dry-run -v {}",
            "run -vv --backing thp {}",
            "run --strict --backing hugetlb --parts all {}",
            "align --dry-run {}",
            "align --dry-run --json {}",
            "stat {}",
            "stat --json {}",
            "store list --store {}",
            "service status --socket {}",
            "service check --config {}",
            "ministat {}",
            "stat --counters {}",
            "doctor --facts {}",
            "doctor --dir {}",
            "inspect --{}",
            "nonsense {}",
        ] {
            let words = command(line, program);
            if line.ends_with("--{}") {
                let mut option = OsString::from("--");
                option.push(OsStr::from_bytes(EVIL));
                hugelift(&["inspect".as_ref(), &option]);
            } else {
                hugelift(&words);
            }
        }
    }
    let missing = hugelift(&command("inspect {}", &planted.broken));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("would not find /no/\\x1b[2J") && said.contains("gone\\x1b[2J"), "{said}");
}

#[test]
fn every_string_of_a_planted_process_is_escaped() {
    let planted = plant();
    let held = Held::start_busy(
        &Cmd::new([&planted.program, &PathBuf::from(OsStr::from_bytes(EVIL))]),
        None,
        &planted.program,
    );
    let pid = held.pid().to_string();
    for line in [
        "inspect PID",
        "inspect -v --parts all PID",
        "inspect --json PID",
        "inspect --html - PID",
        "prime --check -v --pid PID",
        "prime --check --json --pid PID",
        "doctor --pid PID",
        "doctor --json --pid PID",
        "stat --time 0.1s --pid PID",
        "stat --time 0.1s --json --pid PID",
        "top --once --number 1000 --interval 0.1s",
        "top --once --json --number 1000 --interval 0.1s",
    ] {
        let words: Vec<&OsStr> =
            line.split(' ').map(|w| OsStr::new(if w == "PID" { pid.as_str() } else { w })).collect();
        hugelift(&words);
    }
    // The process keeps the file's pages in the page cache, so `prime` names the process.
    hugelift(&command("prime {}", &planted.program));
    held.finish();
}

#[test]
fn json_has_the_path_byte_by_byte() {
    let planted = plant();
    for (line, at) in [
        ("inspect --json {}", "/objects/0/path/bytes"),
        ("prime --check --json {}", "/files/0/path/bytes"),
        ("pool need --json {}", "/programs/0/program/bytes"),
    ] {
        let out = hugelift(&command(line, &planted.program));
        let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let bytes = json.pointer(at).and_then(Value::as_array).unwrap_or_else(|| panic!("{line}: {json}"));
        let bytes: Vec<u8> = bytes.iter().map(|b| b.as_u64().expect("a byte") as u8).collect();
        assert_eq!(bytes, planted.program.as_os_str().as_bytes(), "{line}");
    }
}

/// thiserror displays a path in a field unescaped, and no lint finds that: errors hold the escaping type
/// `Untrusted` instead.
#[test]
fn no_error_holds_a_raw_path() {
    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("the sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut files = Vec::new();
    for one in std::fs::read_dir(crates).expect("the crates").flatten() {
        sources(&one.path().join("src"), &mut files);
    }
    let mut errors = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        let mut rest = text.as_str();
        while let Some(at) = rest.find("#[derive(") {
            rest = &rest[at..];
            let line = rest.lines().next().unwrap_or_default();
            let item = &rest[..rest.find("\n}").unwrap_or(rest.len())];
            if line.contains("Error)") || line.contains("Error,") {
                errors += 1;
                for raw in ["PathBuf", "OsString", "&'static Path", "Box<Path>"] {
                    assert!(
                        !item.contains(raw),
                        "{}: an error holds {raw}: use Untrusted\n{item}",
                        file.display()
                    );
                }
            }
            rest = &rest[line.len()..];
        }
    }
    assert!(errors > 10, "the search found only {errors} error types, fewer than there are");
}
