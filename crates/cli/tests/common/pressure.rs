// SPDX-License-Identifier: Apache-2.0
//! A file of memory pressure, as /proc/pressure/memory is.

use std::path::PathBuf;

/// The memory pressure that hugelift with fault points reads in place of the machine's. `HUGELIFT_TEST_PRESSURE` names its file.
pub struct Pressure {
    dir: tempfile::TempDir,
}

impl Pressure {
    /// There is enough memory.
    pub fn none() -> Pressure {
        let pressure = Pressure { dir: tempfile::TempDir::new().expect("a folder") };
        pressure.set("0.00");
        pressure
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    pub fn set(&self, avg10: &str) {
        let text = |kind: &str| format!("{kind} avg10={avg10} avg60=0.00 avg300=0.00 total=1\n");
        let new = self.dir.path().join("new");
        std::fs::write(&new, text("some") + &text("full")).expect("it is written");
        std::fs::rename(&new, self.path()).expect("it is renamed");
    }
}
