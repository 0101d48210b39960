// SPDX-License-Identifier: Apache-2.0
//! The code of files that a process has mapped.

use crate::io::open;
use crate::proc::procfs::Process;
use hugelift_core::census::mapped_code::code_bytes;
use nix::fcntl::OFlag;
use std::io::{self, BufRead as _, BufReader, Read as _};

/// The most that is read of a list of mappings: some 40,000. A process may have millions.
const MOST: u64 = 4 << 20;

/// Returns the bytes of code of files that a process has mapped.
///
/// # Errors
/// It has ended, or its mappings may not be read.
pub(super) fn read(process: Process) -> io::Result<u64> {
    let file = open::with(&process.with_memory().path("maps"), OFlag::O_RDONLY)?;
    let mut lines = BufReader::new(file.take(MOST));
    let (mut line, mut bytes) = (Vec::new(), 0_u64);
    while lines.read_until(b'\n', &mut line)? > 0 {
        bytes = bytes.saturating_add(code_bytes(&line));
        line.clear();
    }
    Ok(bytes)
}
