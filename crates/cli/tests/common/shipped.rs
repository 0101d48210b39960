// SPDX-License-Identifier: Apache-2.0
//! The two commands that tests run: the one that ships, and the one with fault points. A test program does not start with
//! a shipped command that is older than its sources.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The command under test: what `make build` makes and packages hold (for musl, static, optimized).
pub const HUGELIFT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../release/hugelift");

/// The same with debug assertions and the fault points of `linux/src/faultpoint.rs`: for tests that set
/// `HUGELIFT_TEST_*`, which the shipped command does not read.
pub const WITH_FAULT_POINTS: &str = env!("CARGO_BIN_EXE_hugelift");

/// Runs before `main`, so that no test runs a stale command.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK: extern "C" fn() = check;

/// Ends this test program if the shipped command is missing or stale. A guest (`HUGELIFT_BIN`) has no sources.
extern "C" fn check() {
    if std::env::var_os("HUGELIFT_BIN").is_some() {
        return;
    }
    if let Err(why) = is_current(Path::new(HUGELIFT), Path::new(env!("CARGO_MANIFEST_DIR"))) {
        eprintln!("the tests run target/release/hugelift, as it ships: {why} (make build)");
        std::process::exit(101);
    }
}

/// Checks that the command is newer than all that it is built of. Its time is that at which its build began.
fn is_current(command: &Path, package: &Path) -> Result<(), String> {
    let top = package.join("../..");
    let time = |path: &Path| path.metadata().and_then(|meta| meta.modified());
    let built = time(command).map_err(|e| format!("{}: {e}", command.display()))?;
    let mut newest = (SystemTime::UNIX_EPOCH, PathBuf::new());
    let mut next = vec![top.join("Cargo.toml"), top.join("Cargo.lock"), top.join("crates")];
    next.extend(["ci/build.sh", "ci/remap.sh", "ci/no-unwind-tables.ld"].map(|file| top.join(file)));
    while let Some(path) = next.pop() {
        // No part of the command.
        if ["tests", "bench"].iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            let entries = path.read_dir().map_err(|e| format!("{}: {e}", path.display()))?;
            next.extend(entries.flatten().map(|entry| entry.path()));
        } else {
            let changed = time(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            newest = newest.max((changed, path));
        }
    }
    match newest {
        (changed, path) if changed > built => Err(format!("{} has changed since its build", path.display())),
        _ => Ok(()),
    }
}
