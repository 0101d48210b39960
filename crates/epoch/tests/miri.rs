// SPDX-License-Identifier: Apache-2.0
//! Runs the unit and stress tests under Miri, which detects use after free and data races, and lets a load
//! return any value that the memory model allows. Needs a nightly toolchain with Miri.
#![cfg(not(miri))]

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
#[ignore = "long: Miri builds and interprets the crate"]
fn clean_under_miri() {
    let cargo = |args: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo", "miri"]).args(args).stdin(Stdio::null());
        // The variables that cargo sets for its tests would confuse the inner cargo.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"].iter().any(|own| name.starts_with(own))
                && !["CARGO_HOME", "CARGO_HTTP_CAINFO"].contains(&name.as_str())
            {
                command.env_remove(name);
            }
        }
        command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("miri"));
        command.output()
    };
    let there = cargo(&["--version"]).is_ok_and(|out| out.status.success());
    if !there || !cargo(&["setup"]).is_ok_and(|out| out.status.success()) {
        let why = "needs Miri: rustup toolchain install nightly --component miri,rust-src";
        assert!(
            std::env::var_os("REQUIRE_ALL").is_none_or(|v| v != "1"),
            "REQUIRE_ALL=1, and a test skips: {why}"
        );
        println!("SKIP: {why}");
        return;
    }
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let out = cargo(&["test", "--manifest-path", manifest, "--lib", "--test", "stress"]).expect("it starts");
    let (said, failed) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}\n{failed}");
    // There are two test programs, and both ran tests.
    let results =
        said.matches("test result: ok. ").count() - said.matches("test result: ok. 0 passed").count();
    assert_eq!(results, 2, "{said}");
}
