// SPDX-License-Identifier: Apache-2.0
//! Servers that fork, compared with themselves while clients work: `hugelift compare --pid` lifts and restores all their
//! processes together, finds its own measure of work, and leaves each as it was.

use super::{Load, NO_STORE};
use crate::common::HUGELIFT;
use crate::common::huge::pieces;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The arguments that choose the processes, and how many there are at least while the clients work.
pub struct Batch<'a> {
    pub words: &'a [&'a str],
    pub at_least: u64,
}

/// Compares the processes of a server while `clients` work, which end when their process gets SIGINT or SIGKILL.
///
/// `object` is a file whose whole huge pages are small before and afterwards.
pub fn compared(name: &str, load: &Load, batch: &Batch<'_>, mut clients: Child, object: &Path) {
    let mut command = Command::new(HUGELIFT);
    command.arg("compare").args(batch.words).args(["--json", "--backing", "thp", "--pairs", "6"]);
    command.args(["--period", "150ms", "--settle", "20ms"]).env("HUGELIFT_STORE", NO_STORE);
    let out = command.stdin(Stdio::null()).output().expect("hugelift");
    // Its workers end with their clients.
    let mut kept = Vec::new();
    let procs = std::fs::read_to_string(load.group.path().join("cgroup.procs")).expect("its processes");
    for pid in procs.split_whitespace().filter_map(|word| word.parse().ok()) {
        let all = pieces(pid, &[object.to_path_buf()]);
        kept.extend(all.into_iter().filter(|piece| piece.thp > 0).map(|piece| (pid, piece)));
    }
    let is_working = clients.try_wait().expect("wait").is_none();
    let _ = kill(Pid::from_raw(clients.id().cast_signed()), Signal::SIGKILL);
    let _ = clients.wait();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name}: {:?}: {said}", out.status);
    assert!(is_working, "{name}: its clients have ended: {said}");
    assert!(kept.is_empty(), "{name} keeps copies: {kept:?}");
    let result: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let live = &result["live"];
    let count = |what: &str| live["processes"][what].as_u64().unwrap_or_else(|| panic!("no {what}: {live}"));
    println!(
        "{name}: {} processes compared, {} of them lifted, by {}",
        count("measured"),
        count("lifted"),
        live["metric"]["work"]
    );
    assert!(count("measured") >= batch.at_least && count("lifted") >= batch.at_least, "{name}: {live}");
    assert_eq!((&live["left_as_found"], live["left"].as_str()), (&true.into(), Some("bare")), "{name}");
    let huge = |side: usize| -> Vec<u64> {
        let runs = result["sides"][side]["runs"].as_array().expect("runs");
        let of = |run: &Value, part: &str| run["memory"][part]["huge"].as_u64().expect("bytes");
        runs.iter().map(|run| of(run, "text") + of(run, "rodata")).collect()
    };
    let (bare, lifted) = (huge(0), huge(1));
    assert!(bare.iter().max() < lifted.iter().min(), "{name}: {bare:?} {lifted:?}");
}
