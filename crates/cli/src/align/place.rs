// SPDX-License-Identifier: Apache-2.0
//! Where a copy goes.

use crate::failure::Failure;
use hugelift_core::printable::Escape;
use hugelift_linux::io::entry::Entry;
use hugelift_relink::relay::{Original, RelayError};
use std::path::Path;

/// Opens the folder of the output, and checks that the output is not the input and may be replaced.
pub(super) fn check_output(original: &Original, output: &Path) -> Result<Entry, Failure> {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |source| RelayError::Io { action: "make a file in", path: folder.into(), source };
    let place = Entry::find(output).map_err(failed)?;
    // If stat(2) fails, writing the file gives the error.
    let Ok(there) = place.stat() else { return Ok(place) };
    let name = output.escaped().to_string();
    if place.is(&original.meta) {
        return Err(
            format!("{name} is the file itself; to replace it: hugelift prime --replace {name}").into()
        );
    }
    if there.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(format!("{name} is not a regular file, and is not replaced").into());
    }
    Ok(place)
}
