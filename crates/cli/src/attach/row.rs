// SPDX-License-Identifier: Apache-2.0
//! What came of one process, as JSON and as text.

use hugelift_core::prime::FileReport;
use hugelift_core::printable::Untrusted;
use hugelift_lift::attach::{Change, Name};
use serde::Serialize;

/// One process in the JSON output.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    pub pid: u32,
    /// Why it was not changed.
    pub error: Option<Untrusted>,
    #[serde(flatten)]
    pub change: Option<&'a Change>,
    /// What became of the files that it has mapped, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<&'a [FileReport]>,
}

/// Returns text such as "node (process 4711): took 31.2 ms; a thread was stopped 12 times, for 85 us at most".
pub(super) fn times(name: &Name, change: &Change, verbose: bool) -> String {
    let Change { took_ms, borrowed, longest_stop_us, all_stopped, longest_stop_of_all_us, .. } = change;
    let all = match all_stopped {
        0 => String::new(),
        _ => format!("; all were stopped {all_stopped} times, for {longest_stop_of_all_us} us at most"),
    };
    match (verbose, borrowed) {
        (false, _) => String::new(),
        (true, 0) => format!("{name}: took {took_ms:.1} ms; no thread was stopped\n"),
        (true, _) => format!(
            "{name}: took {took_ms:.1} ms; a thread was stopped {borrowed} times, for {longest_stop_us} us at most{all}\n"
        ),
    }
}
