// SPDX-License-Identifier: Apache-2.0
//! The programs of the fleet, and what was measured of each: the CPU time that huge pages save, with its 95 % interval.

/// What was measured of a program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Program {
    /// Its name in the option `--mix`.
    pub name: &'static str,
    /// The part of the fleet that runs it, in percent. This is an assumption.
    pub percent: f64,
    /// CPU time that huge pages of the page cache save, in percent: low, middle, high. `None` if nobody measured it.
    pub cached: Option<[f64; 3]>,
    /// The same for copies of its code.
    pub copied: Option<[f64; 3]>,
    /// MB of code that a lift copies.
    pub copy_mb: f64,
}

/// The programs and their sources. The ratios of CPU times are turned into savings: 0.937 is 6.3 %.
pub const PROGRAMS: [Program; 5] = [
    // TiDB under point selects, lifted and restored while it runs, 75 pairs: CPU time a statement 0.937 [0.913, 0.961],
    // statements a second 1.061 [1.032, 1.092]; 148 MB.
    Program { name: "tidb", percent: 10.0, cached: None, copied: Some([3.9, 6.3, 8.7]), copy_mb: 148.0 },
    // docs/benchmarks.md, data files: LMDB, gets, 0.855 [0.839, 0.869]. It has no code to copy.
    Program { name: "lmdb", percent: 5.0, cached: Some([13.1, 14.5, 16.1]), copied: None, copy_mb: 0.0 },
    // docs/benchmarks.md, compare --pid: MariaDB, 0.979 [0.932, 1.030]; 8 MB of its code is in use.
    Program { name: "mariadb", percent: 20.0, cached: None, copied: Some([-3.0, 2.1, 6.8]), copy_mb: 8.0 },
    // The same: node, an HTTP server, 1.015 [0.962, 1.067]; 8 MB in use.
    Program { name: "node", percent: 20.0, cached: None, copied: Some([-6.7, -1.5, 3.8]), copy_mb: 8.0 },
    // Programs that nobody has measured. The copy is that of the code in use of clang++, the largest measured.
    Program { name: "unknown", percent: 45.0, cached: None, copied: None, copy_mb: 34.0 },
];

/// Returns the saving if it was measured and its interval does not contain 0. Otherwise there is none to count.
pub fn certain(saving: Option<[f64; 3]>) -> Option<[f64; 3]> {
    saving.filter(|[low, _, high]| *low > 0.0 || *high < 0.0)
}

impl Program {
    /// Returns whether an experiment shows that copies pay.
    pub fn pays(&self) -> bool {
        certain(self.copied).is_some_and(|[low, ..]| low > 0.0)
    }
}
