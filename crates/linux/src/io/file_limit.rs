// SPDX-License-Identifier: Apache-2.0
//! The limit of open files, of which each event of perf_event_open(2) and each file of the page cache takes one.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit.
pub fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // If it fails, fewer files can be open, and whoever opens them reports that.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
