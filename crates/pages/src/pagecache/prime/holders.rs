// SPDX-License-Identifier: Apache-2.0
//! The processes that map a file or have it open, found in /proc as far as the caller may read it.

use super::cache;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::FileId;
use hugelift_core::prime::{Holder, Obstacle};
use hugelift_linux::io::open::{self, ACCESS};
use hugelift_linux::io::read::read_whole;
use hugelift_linux::proc::procfs::Process;
use std::fs::File;
use std::path::Path;

/// Returns all processes but this one.
fn others() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    Process::all().unwrap_or_default().into_iter().filter(move |pid| *pid != own)
}

fn holder(pid: u32) -> Holder {
    let name = Process::new(pid).read("comm").unwrap_or_default();
    Holder { pid, name: name.trim_ascii_end().into() }
}

/// Returns the processes that map each of the huge pages at these offsets of the file. `id` is the file's
/// identity in `/proc/PID/maps`.
pub fn mappers(id: FileId, offsets: &[u64], page: PageSize) -> Vec<Vec<Holder>> {
    let mut found = vec![Vec::new(); offsets.len()];
    // Most processes do not map the file: only lists with its inode are parsed.
    let inode = format!(" {} ", id.inode).into_bytes();
    for pid in others() {
        let process = Process::new(pid).with_memory();
        let Ok(text) = process.read("maps") else { continue };
        if !text.windows(inode.len()).any(|w| w == inode) {
            continue;
        }
        let Ok(mappings) = process.maps() else { continue };
        let stretches: Vec<(u64, u64)> = mappings
            .iter()
            .filter(|m| m.file == id)
            .map(|m| (m.offset, m.offset.saturating_add(m.range.len())))
            .collect();
        if stretches.is_empty() {
            continue;
        }
        let holder = holder(pid);
        for (users, &offset) in found.iter_mut().zip(offsets) {
            let end = offset.saturating_add(page.bytes());
            if stretches.iter().any(|(from, to)| *from < end && offset < *to) {
                users.push(holder.clone());
            }
        }
    }
    found
}

/// Returns the processes that have the file open for writing, if there are any: such a file is left alone.
pub fn written(file: &File) -> Option<Obstacle> {
    let seen = || writers(file);
    match cache::open_for_writing(file) {
        Some(true) => Some(Obstacle::BeingWritten(seen())),
        Some(false) => None,
        // The kernel grants no leases here: only the processes that can be seen count.
        None => Some(seen()).filter(|w| !w.is_empty()).map(Obstacle::BeingWritten),
    }
}

/// Returns the processes that have the file open for writing.
fn writers(file: &File) -> Vec<Holder> {
    let Ok(meta) = file.metadata() else { return Vec::new() };
    // The file of another user's descriptor may be on a file system that does not answer.
    let id = open::id(&meta);
    let is_it = |path: &Path| {
        open::path_only(path).and_then(|seen| open::id_without_waiting(&seen)).is_ok_and(|seen| seen == id)
    };
    let writes = |pid: &u32| {
        let process = Process::new(*pid);
        let fds = std::fs::read_dir(process.path("fd")).into_iter().flatten().flatten();
        fds.filter(|fd| is_it(&fd.path())).any(|fd| {
            let info = process.path("fdinfo").join(fd.file_name());
            read_whole(&info).ok().and_then(|text| flags(&text)).is_some_and(|f| f & ACCESS != 0)
        })
    };
    others().filter(writes).map(holder).collect()
}

/// Returns the open flags in `/proc/PID/fdinfo/FD`, where they are octal (proc_pid_fdinfo(5)).
fn flags(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_are_octal() {
        assert_eq!(flags(b"pos:\t0\nflags:\t0100002\nmnt_id:\t29\n"), Some(0o100_002));
        assert_eq!(flags(b"flags:\t9\n"), None);
        assert_eq!(flags(b"pos:\t0\n"), None);
        assert_eq!(flags(b"\xff"), None);
    }
}
