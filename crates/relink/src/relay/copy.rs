// SPDX-License-Identifier: Apache-2.0
//! A copy gets its mode and its name.

use super::error::RelayError;
use hugelift_linux::io::entry::Entry;
use hugelift_linux::io::temporary::Temporary;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// Gives `copy` its mode.
///
/// # Errors
/// [`RelayError::Io`]
pub fn set_mode(copy: &Temporary, mode: u32, place: &Entry) -> Result<(), RelayError> {
    let set = copy.file().set_permissions(Permissions::from_mode(mode));
    set.map_err(RelayError::io("set the mode of the copy for", &place.path()))
}

/// Gives `copy` its name: others see the old file or the whole new one.
///
/// # Errors
/// [`RelayError::Io`]
pub fn publish(copy: Temporary, place: &Entry) -> Result<(), RelayError> {
    copy.publish(place).map_err(RelayError::io("write", &place.path()))
}
