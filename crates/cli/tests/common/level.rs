// SPDX-License-Identifier: Apache-2.0
//! How much a test tries out: `make test-long` (`TEST_LONG=1`) all that there is, `make test` a part.

/// Returns whether all is to be tried.
pub fn is_long() -> bool {
    std::env::var_os("TEST_LONG").is_some_and(|value| value == "1")
}

/// Returns how many rounds there are.
pub fn rounds<T>(usual: T, long: T) -> T {
    if is_long() { long } else { usual }
}

/// Returns every item in the long level, otherwise one of `step`, among them the first.
pub fn some<T>(items: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    items.into_iter().step_by(rounds(step, 1))
}
