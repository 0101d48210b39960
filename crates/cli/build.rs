// SPDX-License-Identifier: Apache-2.0
//! Finds out what `hugelift --version` names: the commit and the target. Two builds of one commit have the
//! same bytes, so there is no date in it.
//!
//! The commit is, in this order, what the variable HUGELIFT_COMMIT says, that of the git checkout, that of a
//! crate that cargo has packed, or `unknown`. A debug build names none: it would be built again, with all its
//! tests, after each commit.

use std::env::var;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit that are shown. git's own choice depends on the other commits of a clone.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HUGELIFT_COMMIT");
    let variable = |name: &str| var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let commit = match named() {
        Some(commit) => commit,
        None if variable("PROFILE") == "debug" => "debug build".to_string(),
        None => checked_out(&here).or_else(|| packed(&here)).unwrap_or_else(|| "unknown".into()),
    };
    println!("cargo::rustc-env=HUGELIFT_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=HUGELIFT_BUILD_TARGET={}", variable("TARGET"));
}

/// Returns the commit that the packager names.
fn named() -> Option<String> {
    let commit = var("HUGELIFT_COMMIT").ok().filter(|commit| !commit.is_empty())?;
    assert!(commit.chars().all(|c| c.is_ascii_graphic()), "HUGELIFT_COMMIT='{commit}' is not one word");
    Some(commit)
}

/// Returns the commit of the git checkout to which this folder belongs, unless it is that of another project.
fn checked_out(here: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").arg("-C").arg(here).arg("rev-parse").args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim_end().to_string())
    };
    if git(&["--show-prefix"])? != "crates/cli/" {
        return None;
    }
    // Git appends a line to it when the commit changes. For cargo a file that is missing has always changed.
    let log = here.join(git(&["--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    git(&[&format!("--short={DIGITS}"), "HEAD"])
}

/// Returns the commit that `cargo package` has written down.
fn packed(here: &Path) -> Option<String> {
    let text = std::fs::read_to_string(here.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit: String = rest.chars().skip_while(|c| !c.is_ascii_hexdigit()).take(DIGITS).collect();
    (commit.len() == DIGITS && commit.chars().all(|c| c.is_ascii_hexdigit())).then_some(commit)
}
