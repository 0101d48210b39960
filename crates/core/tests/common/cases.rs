// SPDX-License-Identifier: Apache-2.0
//! How many cases a property is tried with.

use proptest::test_runner::Config;

/// `times` as many as `PROPTEST_CASES` says, or as are usual. What fails is cut down and becomes a test; no
/// file of seeds is kept.
pub fn times(times: u32) -> Config {
    let usual = Config::default();
    Config { cases: usual.cases.saturating_mul(times), failure_persistence: None, ..usual }
}
