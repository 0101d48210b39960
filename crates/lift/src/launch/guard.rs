// SPDX-License-Identifier: Apache-2.0
//! Finds the fork guard in a stopped program, and writes to its table which spans are on pages of the pool.

use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::maps::Mapping;
use hugelift_core::printable::Escape;
use hugelift_inside::names::{IN_MEMORY, LIBRARY};
use hugelift_inside::table::{COUNT_AT, HEAD_BYTES, Head, MAGIC, SPANS, SYMBOL, Span, state};
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use object::{Object as _, ObjectSymbol as _};

/// Why a program's writable memory must not be on pages of the pool.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unguarded {
    /// The program is static or set-uid, or was started without the variable.
    #[error("{LIBRARY}, which would guard it, is not loaded (a static program loads none)")]
    NotLoaded,
    /// The library is loaded, and did not find pthread_atfork(3) or another function that it needs.
    #[error("its C library lacks functions that {LIBRARY} needs to guard it")]
    NoHooks,
    /// A second thread may write while a child copies.
    #[error("it has more than one thread")]
    Threads,
    /// Private mappings of hugetlb files reserve nothing.
    #[error("mremap(2) of this kernel does not move hugetlb memory (Linux 5.16 does)")]
    OldKernel,
    /// More spans than the library's table holds.
    #[error("it has {0} writable spans, and {LIBRARY} holds at most {SPANS}")]
    TooMany(usize),
    /// The library's memory or its file cannot be read, or has unexpected content.
    #[error("cannot reach {LIBRARY} in it: {0}")]
    Unreachable(String),
}

/// The guard of one program.
#[derive(Debug)]
pub struct Guard {
    pid: u32,
    /// The address of its table.
    table: Addr,
}

impl Guard {
    /// Finds the guard in the stopped process `pid` with these mappings.
    ///
    /// # Errors
    /// [`Unguarded`]
    pub fn find(pid: u32, mappings: &[Mapping]) -> Result<Guard, Unguarded> {
        let in_memory = |m: &Mapping| m.path.as_os_str() == IN_MEMORY;
        let is_named = |m: &Mapping| in_memory(m) || m.path.file_name().is_some_and(|n| n == LIBRARY);
        let is_library = |m: &&Mapping| m.offset == 0 && is_named(m);
        let first = mappings.iter().find(is_library).ok_or(Unguarded::NotLoaded)?;
        let path = Process::new(pid).path("root").join(first.path.strip_prefix("/").unwrap_or(&first.path));
        let stated = if in_memory(first) {
            stated_address(hugelift_inside::FILE)
        } else {
            std::fs::read(&path).map_err(|e| e.to_string()).and_then(|bytes| stated_address(&bytes))
        };
        let stated = stated.map_err(|e| Unguarded::Unreachable(format!("{}: {e}", path.escaped())))?;
        let table = Addr(first.range.start.0.wrapping_add(stated));
        let read = |e: std::io::Error| Unguarded::Unreachable(format!("read at {table}: {e}"));
        let head: [u8; HEAD_BYTES] = memory::read_array(pid.cast_signed(), table).map_err(read)?;
        match Head::from_bytes(head) {
            Head { magic: MAGIC, state: state::GUARDED | state::UNSTARTED, .. } => {}
            Head { magic: MAGIC, state: state::THREADS, .. } => return Err(Unguarded::Threads),
            Head { magic: MAGIC, .. } => return Err(Unguarded::NoHooks),
            Head { magic, .. } => return Err(Unguarded::Unreachable(format!("{magic:#x} at {table}"))),
        }
        // The state does not count threads that pthread_create(3) has not made.
        let tasks = std::fs::read_dir(Process::new(pid).path("task")).map(Iterator::count);
        match tasks {
            Ok(1) => Ok(Guard { pid, table }),
            _ => Err(Unguarded::Threads),
        }
    }

    /// Writes the spans on pages of the pool to the guard's table, with the size of these pages.
    ///
    /// # Errors
    /// [`Unguarded`]: the guard does not know the spans.
    pub fn tell(&self, spans: &[(Range, PageSize)]) -> Result<(), Unguarded> {
        if spans.len() > SPANS {
            return Err(Unguarded::TooMany(spans.len()));
        }
        let mut bytes = (spans.len() as u64).to_ne_bytes().to_vec();
        for (range, page) in spans {
            let span = Span { start: range.start.0, end: range.end.0, page: page.bytes() };
            bytes.extend(span.to_bytes());
        }
        let at = Addr(self.table.0 + COUNT_AT);
        memory::write(self.pid.cast_signed(), at, &bytes)
            .map_err(|e| Unguarded::Unreachable(format!("write at {at}: {e}")))
    }
}

/// Returns the address of the table that the library's file states.
fn stated_address(bytes: &[u8]) -> Result<u64, String> {
    let file = object::File::parse(bytes).map_err(|e| e.to_string())?;
    let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(SYMBOL) && s.is_definition());
    symbol.map(|s| s.address()).ok_or_else(|| format!("no symbol {SYMBOL}"))
}
