// SPDX-License-Identifier: Apache-2.0
//! `hugelift inspect` counts memory by the size of its folios. The test changes settings of the machine.

use crate::common::guard::{Exclusive, Settings};
use crate::common::{Cmd, HUGELIFT, Held, fits};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const MB: u64 = 1 << 20;

/// Has 16 MB for which it asks for huge pages.
const PROGRAM: &str = "import mmap, sys\n\
    m = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
    m.madvise(mmap.MADV_HUGEPAGE)\n\
    m.write(b'x' * (16 << 20))\n\
    print('ready', flush=True)\n\
    sys.stdin.readline()";

#[test]
fn issue_32_5_folios_of_64_kb_are_seen() {
    need_root!();
    need!("python3");
    let sizes = [("hugepages-64kB/enabled", "madvise"), ("hugepages-2048kB/enabled", "never")];
    let paths = sizes.map(|(name, _)| format!("{THP}/{name}"));
    if let Some(missing) = paths.iter().find(|path| !PathBuf::from(path).exists()) {
        skip!("no {missing}: the kernel has no further sizes");
    }
    let _alone = Exclusive::take().expect("the lock");
    let _kept = Settings::keep(&paths.each_ref().map(String::as_str)).expect(THP);
    for ((_, value), path) in sizes.iter().zip(&paths) {
        fs::write(path, value).expect(path);
    }
    // python3 in PATH may be a script that starts it.
    let code = "import os; print(os.readlink('/proc/self/exe'))";
    let exe = Command::new("python3").args(["-c", code]).output().expect("python3").stdout;
    let python = PathBuf::from(String::from_utf8(exe).expect("UTF-8").trim());
    let held = Held::start(&Cmd::new([&python]).args(["-c", PROGRAM]), None, &python);
    let run = |options: &[&str]| {
        let out = Command::new(HUGELIFT).arg("inspect").args(options).arg(held.pid().to_string()).output();
        String::from_utf8(out.expect("inspect").stdout).expect("UTF-8")
    };
    let seen: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    fits("report", &seen);
    let anon = &seen["folios"]["parts"]["anon"]["bytes"];
    // Its ends may not be aligned, and memory may be in pieces.
    let bytes = anon["65536"].as_u64().unwrap_or(0);
    assert!((8 * MB..17 * MB).contains(&bytes), "{anon}");
    assert!(anon["2097152"].is_null(), "{anon}");
    let text = run(&[]);
    assert!(text.contains("memory by the size of its folios\n"), "{text}");
    let row =
        text.lines().find(|line| line.starts_with("anon ") && line.contains("64 kB ")).unwrap_or_default();
    assert!((8..17).any(|mb| row.contains(&format!("64 kB {mb}"))), "{text}");
    assert_eq!(held.finish().stdout, "ready\n");
}
