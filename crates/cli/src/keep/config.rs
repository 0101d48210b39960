// SPDX-License-Identifier: Apache-2.0
//! Reads the configuration from its file.

use crate::failure::Failure;
use hugelift_core::keep::Config;
use hugelift_core::printable::Escape;
use std::path::Path;

/// Reads a configuration.
pub(super) fn read_config(path: &Path) -> Result<Config, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.escaped()))?;
    Ok(Config::parse(&text).map_err(|e| format!("{}: {e}", path.escaped()))?)
}
