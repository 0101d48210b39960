// SPDX-License-Identifier: Apache-2.0
//! The number of cases that a property is tried with.

use proptest::test_runner::Config;

/// Returns a configuration with `times` the usual number of cases (`PROPTEST_CASES`). A case that fails is
/// cut down by hand and becomes a test; no file of seeds is kept.
pub fn times(times: u32) -> Config {
    let usual = Config::default();
    Config { cases: usual.cases.saturating_mul(times), failure_persistence: None, ..usual }
}
