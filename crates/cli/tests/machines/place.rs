// SPDX-License-Identifier: Apache-2.0
//! Where hugelift and the victims are: beside the sources, or in a guest without sources.

use crate::shipped::{HUGELIFT, WITH_FAULT_POINTS};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Returns the command under test, as it ships: `HUGELIFT_BIN` in a guest.
pub fn hugelift() -> PathBuf {
    std::env::var_os("HUGELIFT_BIN").map_or_else(|| HUGELIFT.into(), PathBuf::from)
}

/// Returns the command that reads `HUGELIFT_TEST_*`: `HUGELIFT_FAULTS_BIN` in a guest.
pub fn with_fault_points() -> PathBuf {
    std::env::var_os("HUGELIFT_FAULTS_BIN").map_or_else(|| WITH_FAULT_POINTS.into(), PathBuf::from)
}

/// Returns whether this is a guest. An emulated machine may be slower than any limit for real ones.
pub fn is_guest() -> bool {
    std::env::var_os("HUGELIFT_BIN").is_some()
}

/// Returns a compiled victim, such as `vm_big.static`; in a guest from the directory
/// `HUGELIFT_VICTIMS`.
pub fn victim(name: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os("HUGELIFT_VICTIMS") {
            return dir.into();
        }
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("machines");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/victims/vm_build.sh");
        let built = Command::new("sh").args([script, "cc"]).arg(&dir).output().unwrap();
        assert!(built.status.success(), "{script}: {}", String::from_utf8_lossy(&built.stderr));
        dir
    });
    dir.join(name)
}

/// Returns a tmpfs from which programs may run.
pub fn tmpfs() -> Option<&'static Path> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let is_one = |dir: &&str| {
        let mut lines = mounts.lines().filter(|l| l.contains(&format!(" {dir} tmpfs ")));
        lines.any(|l| !l.contains("noexec"))
    };
    ["/tmp", "/dev/shm"].into_iter().find(is_one).map(Path::new)
}

/// Waits until no other test uses the pools and the machine's memory.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn is_root() -> bool {
    // SAFETY: geteuid(2) takes no argument and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Ends the test because this machine lacks something. This is no failure under REQUIRE_ALL, since
/// no set-up could help; `make test-vm` fails if a test is skipped on every machine.
macro_rules! lacks {
    ($($why:tt)*) => {{
        println!("SKIP: {}", format!($($why)*));
        return;
    }};
}
pub(crate) use lacks;

/// Ends the test unless it runs as root.
macro_rules! needs_root {
    () => {
        if !$crate::place::is_root() {
            println!("SKIP: not root");
            assert!(std::env::var_os("REQUIRE_ALL").is_none(), "skipped: not root");
            return;
        }
    };
}
pub(crate) use needs_root;
