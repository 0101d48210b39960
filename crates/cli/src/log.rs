// SPDX-License-Identifier: Apache-2.0
//! `HUGELIFT_LOG`: debugging output on stderr. Its value is a filter such as `debug` or
//! `hugelift_inject=trace` (directives of tracing-subscriber's `EnvFilter`).

use crate::failure::Failure;
use hugelift_core::printable::text_to_parse;
use hugelift_linux::io::console::EscapedStderr;
use std::os::unix::ffi::OsStrExt;
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "HUGELIFT_LOG";

/// Starts logging to stderr if the variable is set.
///
/// # Errors
/// The value is not a filter.
pub fn start() -> Result<(), Failure> {
    let Some(filter) = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) else { return Ok(()) };
    let filter = text_to_parse(filter.as_bytes());
    let filter =
        EnvFilter::try_new(&filter).map_err(|e| format!("{VARIABLE}={filter}: {e}; try {VARIABLE}=debug"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| EscapedStderr).with_ansi(false).init();
    Ok(())
}
