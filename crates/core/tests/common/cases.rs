// SPDX-License-Identifier: Apache-2.0
//! How many cases a property is tried with.

use proptest::test_runner::Config;

/// `times` as many as other properties, hence as many more if `PROPTEST_CASES` says so.
pub fn times(times: u32) -> Config {
    let usual = Config::default();
    Config { cases: usual.cases.saturating_mul(times), failure_persistence: None, ..usual }
}
