// SPDX-License-Identifier: Apache-2.0
//! Tests that advice is true of the object that it names, and that following it has an effect.

use crate::common::build::{code_file, must};
use crate::common::{Cmd, HUGELIFT, Held, Primed, fat};
use crate::skip;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn hugelift(words: &[&str]) -> Output {
    Command::new(HUGELIFT).args(words).stdin(Stdio::null()).output().expect("start hugelift")
}

fn report(target: &str) -> Value {
    let out = hugelift(&["inspect", "--json", target]);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

/// Returns the parts of the object at `path` that are text.
fn texts<'a>(report: &'a Value, path: &Path) -> Vec<&'a Value> {
    let objects = report["objects"].as_array().expect("objects");
    let object = objects.iter().find(|o| o["path"].as_str() == path.to_str());
    let object = object.unwrap_or_else(|| panic!("no {} in {report}", path.display()));
    object["parts"].as_array().expect("parts").iter().filter(|p| p["part"] == "text").collect()
}

fn huge(report: &Value, path: &Path) -> u64 {
    texts(report, path).iter().map(|p| p["huge_bytes"].as_u64().expect("a number")).sum()
}

/// Returns the advice on text of the object that could be lifted but is not.
fn advice(report: &Value, path: &Path) -> String {
    let parts = texts(report, path);
    let skips = parts.iter().flat_map(|p| p["skips"].as_array().expect("skips"));
    let mut hints =
        skips.filter(|s| s["reason"] == "not-lifted").map(|s| s["hint"].as_str().unwrap_or("none"));
    hints
        .next()
        .unwrap_or_else(|| panic!("the report has no text that could be lifted: {report}"))
        .to_string()
}

/// Returns what doctor advises for the code of a process.
fn of_doctor(pid: u32) -> Option<String> {
    let out = hugelift(&["doctor", "--json", "--pid", &pid.to_string()]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let findings = report["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|f| f["key"] == "code-not-huge")?;
    Some(finding["advice"].as_str().expect("advice").to_string())
}

/// Returns the advice for the next start of the program, after that for the process itself.
fn for_next_start(advice: &str, pid: u32) -> String {
    let before = format!("hugelift attach {pid}, or for its next start ");
    advice.strip_prefix(&before).unwrap_or_else(|| panic!("{advice}")).to_string()
}

/// Returns the arguments of the first command in the advice, without the word `hugelift`.
fn follow(advice: &str) -> Vec<String> {
    let command = advice.split([',', ';']).next().unwrap_or_default();
    let words: Vec<String> = command.split(' ').map(|w| w.trim_matches('\'').to_string()).collect();
    assert_eq!(words[0], "hugelift", "{advice}");
    let mut words = words[1..].to_vec();
    if words[0] == "run" {
        // These programs wait, and use too little CPU time for a copy while they run.
        words.insert(1, "--eager".into());
    }
    words
}

/// A directory that looks like a JDK: `bin/java` opens `lib/server/libjvm.so` and waits.
struct Jdk {
    _dir: tempfile::TempDir,
    java: PathBuf,
    jvm: PathBuf,
}

fn jdk() -> Jdk {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let home = dir.path().canonicalize().expect("the directory");
    let (bin, server) = (home.join("bin"), home.join("lib/server"));
    std::fs::create_dir_all(&bin).expect("a directory");
    std::fs::create_dir_all(&server).expect("a directory");
    let (java, jvm) = (bin.join("java"), server.join("libjvm.so"));
    let source = home.join("jvm.c");
    let code = code_file(6 << 20);
    let text = format!(
        "__asm__(\".pushsection .text\\n.balign 64\\n.incbin \\\"{}\\\"\\n.popsection\\n\");\n",
        code.display()
    );
    std::fs::write(&source, text).expect("write the source");
    // The kernel maps huge pages only if the address is congruent to the offset in the file.
    must(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,-z,max-page-size=2097152", "-o"])
            .arg(&jvm)
            .arg(&source),
    );
    let main = home.join("java.c");
    let text = format!(
        "#include <dlfcn.h>\n#include <unistd.h>\n\
         int main(void) {{ char c; if (!dlopen(\"{}\", RTLD_NOW)) return 1; while (read(0, &c, 1) > 0) ; return 0; }}\n",
        jvm.display()
    );
    std::fs::write(&main, text).expect("write the source");
    must(Command::new("cc").arg("-o").arg(&java).arg(&main).arg("-ldl"));
    Jdk { _dir: dir, java, jvm }
}

#[test]
fn advice_on_needed_objects_is_followed_and_changes_something() {
    let copy = Primed::small(&fat("hold").build());
    let program = copy.path().canonicalize().expect("the copy");
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let before = report(&held.pid().to_string());
    let of_doctor_before = of_doctor(held.pid());
    assert_eq!(huge(&before, &program), 0, "{before}");
    let advice = for_next_start(&advice(&before, &program), held.pid());
    held.finish();
    assert!(of_doctor_before.is_some_and(|advice| advice.contains("hugelift run")), "doctor reports it too");
    assert_eq!(advice, format!("hugelift run {}", program.display()));
    let words = follow(&advice);
    let followed =
        Held::start(&Cmd::new([&[HUGELIFT.to_string()], words.as_slice()].concat()), None, &program);
    let after = report(&followed.pid().to_string());
    assert!(huge(&after, &program) > 0, "{advice}: {after}");
    // Once followed, the advice is not repeated.
    assert_eq!(of_doctor(followed.pid()), None);
    followed.finish();
}

/// The advice for a process that runs lifts its own code and the library that it has opened, without a new start.
#[test]
fn advice_on_a_running_process_is_followed_and_changes_something() {
    let copy = Primed::small(&fat("hold").build());
    let program = copy.path().canonicalize().expect("the copy");
    let jdk = jdk();
    let small_jvm = Primed::small(&jdk.jvm);
    std::fs::rename(small_jvm.path(), &jdk.jvm).expect("put the copy in place");
    for (started, object) in [(&program, &program), (&jdk.java, &jdk.jvm)] {
        let held = Held::start(&Cmd::new([started]), None, started);
        let pid = held.pid().to_string();
        let before = report(&pid);
        assert_eq!(huge(&before, object), 0, "{before}");
        let words = follow(&advice(&before, object));
        assert_eq!(words, ["attach", &pid]);
        let of_doctor_before = of_doctor(held.pid()).expect("a finding");
        assert!(of_doctor_before.contains(&format!("hugelift attach {pid}")), "{of_doctor_before}");
        // It sleeps, so none of its code is in use.
        let out = hugelift(&[words[0].as_str(), "--whole", "--backing", "thp", words[1].as_str()]);
        assert!(out.status.success(), "{out:?}");
        let after = report(&pid);
        assert!(huge(&after, object) >= 4 << 20, "{words:?}: {after}");
        // Once followed, the advice is not repeated.
        assert_eq!(of_doctor(held.pid()), None);
        held.finish();
    }
}

#[test]
fn advice_on_libraries_opened_later_is_followed_and_changes_something() {
    let jdk = jdk();
    if let Err(why) = Primed::new(&jdk.jvm) {
        skip!("{why}");
    }
    let held = Held::start(&Cmd::new([&jdk.java]), None, &jdk.java);
    let before = report(&held.pid().to_string());
    let advice = for_next_start(&advice(&before, &jdk.jvm), held.pid());
    let of_doctor_before = of_doctor(held.pid()).expect("a finding");
    held.finish();
    assert!(advice.starts_with(&format!("hugelift prime {},", jdk.jvm.display())), "{advice}");
    assert!(
        of_doctor_before.ends_with(&format!("hugelift prime {}", jdk.jvm.display())),
        "{of_doctor_before}"
    );
    assert!(
        !of_doctor_before.contains("hugelift run"),
        "hugelift run does not lift a library that is opened later"
    );
    // A file just written is not yet on disk, and memory may be fragmented for a moment.
    let words = follow(&advice);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!((0..3).any(|_| hugelift(&words).status.success()), "{advice}: {:?}", hugelift(&words));
    let again = Held::start(&Cmd::new([&jdk.java]), None, &jdk.java);
    let pid = again.pid().to_string();
    let after = report(&pid);
    assert!(huge(&after, &jdk.jvm) > huge(&before, &jdk.jvm), "{advice}: {after}");
    // Once followed, the advice is not repeated.
    assert_eq!(of_doctor(again.pid()), None);
    again.finish();
}

#[test]
fn the_library_that_java_opens_is_named() {
    let jdk = jdk();
    let (java, jvm) = (jdk.java.to_str().expect("UTF-8"), jdk.jvm.to_str().expect("UTF-8"));
    for words in [&["run", "-v", java][..], &["inspect", java]] {
        let out = hugelift(words);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains(&format!("it opens {jvm}")), "{words:?}: {said}");
        assert!(said.contains(&format!("hugelift prime {jvm}")), "{words:?}: {said}");
    }
    let out = hugelift(&["prime", "--check", "--json", "--with-libs", java]);
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let files = report["files"].as_array().expect("files");
    assert!(files.iter().any(|f| f["path"] == jvm), "{report}");
}

#[test]
fn no_advice_has_a_placeholder() {
    let jdk = jdk();
    let program = fat("hold").build();
    for target in [&program, &jdk.java, &jdk.jvm] {
        for parts in ["text", "all"] {
            let out = hugelift(&["inspect", "-v", "--parts", parts, target.to_str().expect("UTF-8")]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(!said.contains("PROG"), "{said}");
            for line in said.lines().filter(|l| l.contains("; hugelift ")) {
                let named = line.contains(target.to_str().expect("UTF-8")) || line.contains("/lib");
                assert!(named, "{line}");
            }
        }
    }
}

#[test]
fn inspect_shows_the_page_cache_and_counts_entries() {
    let small = Primed::small(&fat("hold").flags(&["-no-pie", "-Wl,-z,max-page-size=2097152"]).build());
    let path = small.path().to_str().expect("UTF-8").to_string();
    let cached = |report: &Value| {
        report["objects"][0]["page_cache_bytes"].as_u64().unwrap_or_else(|| panic!("{report}"))
    };
    let before = report(&path);
    let entries = &before["tlb_entries"];
    let (few, many) =
        (entries["lifted"].as_u64().expect("a number"), entries["small"].as_u64().expect("a number"));
    assert!(few * 2 < many && many > 2 * (6 << 20) / 65536, "{entries}");
    assert_eq!(cached(&before), 0, "{before}");
    let text = String::from_utf8_lossy(&hugelift(&["inspect", &path]).stdout).into_owned();
    assert!(text.contains("TLB entries for text and rodata: "), "{text}");
    assert!(text.contains("on huge pages in the page cache now: nothing of it"), "{text}");
    // Priming replaces the file's small folios. A file system without large folios cannot be primed.
    let primed = hugelift(&["prime", &path]);
    if String::from_utf8_lossy(&primed.stdout).contains("no huge pages from its file system") {
        skip!("the file system of {path} has no large folios");
    }
    assert!(primed.status.success(), "{primed:?}");
    let after = report(&path);
    assert!(cached(&after) >= 4 << 20, "{after}");
    let text = String::from_utf8_lossy(&hugelift(&["inspect", &path]).stdout).into_owned();
    assert!(text.contains(&format!(" of {}", small.path().file_name().expect("a name").display())), "{text}");
}

#[test]
fn counters_from_the_literature_are_accepted() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("counts.json");
    let counts = serde_json::json!({
        "note": "as in a paper",
        "cpu": { "vendor": "GenuineIntel", "family": 6, "model": 85, "stepping": 4 },
        "counters": {
            "INST_RETIRED.ANY": 2_000_000, "CPU_CLK_UNHALTED.THREAD": 4_000_000,
            "ITLB_MISSES.MISS_CAUSES_A_WALK": 4_000,
            "DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK": 6_000, "DTLB_STORE_MISSES.MISS_CAUSES_A_WALK": 2_000,
            "PAGE_WALKER_LOADS.DTLB_L1": 900, "PAGE_WALKER_LOADS.DTLB_MEMORY": 100,
            "DTLB_LOAD_MISSES.WALK_ACTIVE": 400_000
        }
    });
    std::fs::write(&file, counts.to_string()).expect("write the counts");
    let out = hugelift(&["stat", "--json", "--counters", file.to_str().expect("UTF-8")]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let metric = |key: &str| {
        let all = report["metrics"].as_array().expect("metrics");
        let found = all.iter().find(|m| m["key"] == key).unwrap_or_else(|| panic!("no {key}: {report}"));
        found["value"].as_f64().expect("a number")
    };
    for (key, value) in [
        ("itlb_walk_starts", 2.0),
        ("dtlb_walk_starts", 4.0),
        ("page_walker_loads", 0.5),
        ("page_walker_memory_share", 0.1),
        ("dtlb_load_walk_share", 0.1),
        ("instructions_per_cycle", 0.5),
    ] {
        assert!((metric(key) - value).abs() < 1e-9, "{key}: {report}");
    }
    assert_eq!(report["bound"], Value::Null, "the file does not give all walk cycles");
}
