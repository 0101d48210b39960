// SPDX-License-Identifier: Apache-2.0
//! Maps files in a running process, and finds out what is mapped there.

use super::{Live, fault_of};
use crate::calls::{Calls as _, map_again, prot_bits, refused};
use crate::lent::Lent;
use crate::pass::Passage;
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::{FileId, Prot};
use hugelift_core::target::{Fault, MapStored};
use hugelift_linux::proc::procfs::Process;
use hugelift_linux::proc::{mapped, memory, pagemap};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;

impl Live {
    /// Maps `len` bytes of a file of [`Live::offer`] from `offset` on at an address of the kernel's
    /// choice, and returns it.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn map_anywhere(&mut self, entry: usize, offset: u64, len: u64, prot: Prot) -> Result<Range, Fault> {
        let range = Range::sized(Addr(0), len).unwrap_or_default();
        let mapped = self.map_one(&MapStored { range, prot, entry, offset }, libc::MAP_PRIVATE);
        self.note();
        mapped
    }

    /// Maps `len` bytes of the file of an existing mapping from `offset` on at an address of the kernel's
    /// choice, and returns it. `page` is a page of that mapping, mapped from `page_offset`, which is not
    /// larger.
    ///
    /// # Errors
    /// [`Fault`]; before Linux 5.13 the kernel does this to anonymous memory only (EINVAL).
    pub fn map_again(
        &mut self,
        page: Range,
        page_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<Range, Fault> {
        const CALL: &str = "mremap(MREMAP_DONTUNMAP)";
        let failed = |errno: i64| Fault::Call { call: CALL, range: page, errno: -errno as i32 };
        let ahead = offset.checked_sub(page_offset).ok_or_else(|| failed(-i64::from(libc::EINVAL)))?;
        let expected = self.planned.at(page).cloned();
        let expected = expected.ok_or_else(|| failed(-i64::from(libc::ESTALE)))?;
        let (pid, mappings) = (self.pid, Rc::clone(&self.mappings));
        // The page of the mapping moves, and the mapping gets the file's page again: what the program has written to it
        // would be lost.
        let is_written = |page: Range| pagemap::is_written(pid, page).unwrap_or(true);
        let mut refuse = || (is_written(page) || !mappings.has(&expected)).then_some(libc::ESTALE);
        let mut is_first = true;
        let made = self.borrow(|lent| {
            map_again(page, ahead, len, |number, args| {
                if !std::mem::take(&mut is_first) {
                    return lent.call(number, args);
                }
                let again = lent.call_unless(number, args, &mut refuse)?;
                match Range::sized(Addr(again as u64), page.len()).filter(|_| again >= 0) {
                    Some(moved) if is_written(moved) => {
                        give_back(lent, pid, moved, page);
                        lent.call(libc::SYS_munmap, [moved.start.0, moved.len(), 0, 0, 0, 0])?;
                        Ok(i64::from(-libc::ESTALE))
                    }
                    _ => Ok(again),
                }
            })
        });
        match fault_of(made)? {
            error @ ..0 => Err(failed(error)),
            at => {
                let mapped = Range::sized(Addr(at as u64), len).unwrap_or_default();
                self.scratch.add(mapped);
                self.note();
                Ok(mapped)
            }
        }
    }

    /// Passes one file, maps and closes it. Returns where it is mapped.
    pub(super) fn map_one(&mut self, copy: &MapStored, flags: i32) -> Result<Range, Fault> {
        const OPEN: &str = "passing a file by a socket";
        let failed = |call, errno| Fault::Call { call, range: copy.range, errno };
        let file = self.files.get(copy.entry).ok_or_else(|| failed(OPEN, libc::EBADF))?;
        let file = file.try_clone().map_err(|e| refused("dup", copy.range, &e))?;
        let wanted = file.metadata().map_err(|e| refused("fstat", copy.range, &e))?;
        let passage = match self.passage.take() {
            Some(passage) => passage,
            None => Passage::new(self.pid).map_err(|e| refused(OPEN, copy.range, &e))?,
        };
        let range = copy.range;
        let (prot, offset, flags) = (prot_bits(copy.prot), copy.offset, flags as u64);
        let calls = self.borrow(|lent| {
            let open = passage.pass(lent, &file)?;
            if open < 0 {
                return Ok((open, open));
            }
            let args = [range.start.0, range.len(), prot, flags, open as u64, offset];
            let map = lent.call(libc::SYS_mmap, args)?;
            lent.call(libc::SYS_close, [open as u64, 0, 0, 0, 0, 0])?;
            Ok((open, map))
        });
        self.passage = Some(passage);
        let (open, map) = match calls {
            Err(why) if !why.is_final() => return Err(failed(OPEN, libc::EBUSY)),
            calls => calls.map_err(|e| Fault::Lost(e.to_string()))?,
        };
        if open < 0 {
            return Err(failed(OPEN, -open as i32));
        }
        if map < 0 {
            return Err(failed("mmap of a file", -map as i32));
        }
        // Another thread may have put another file at the descriptor meanwhile.
        let mapped = Range::sized(Addr(map as u64), range.len()).unwrap_or_default();
        self.scratch.add(mapped);
        let is_wanted = file_of(self.pid, mapped).is_ok_and(|got| got == (wanted.dev(), wanted.ino()));
        let is_there = range.start.0 == 0 || mapped == range;
        if !is_there || !is_wanted {
            self.release_all(mapped)?;
            return Err(failed(OPEN, libc::ESTALE));
        }
        Ok(mapped)
    }
}

/// Gives the program the bytes of a page again to which it has written just before the page was moved away. If it has
/// written to its place since, it has what it wrote last.
fn give_back(lent: &Lent, pid: i32, moved: Range, to: Range) {
    let mut bytes = vec![0; moved.len() as usize];
    let is_read = memory::read(pid, moved.start, &mut bytes).is_ok_and(|n| n == bytes.len());
    if is_read && pagemap::is_written(pid, to).is_ok_and(|is_written| !is_written) {
        // Whatever the protection is there: the kernel makes a page of the program's own, as for a debugger.
        let written = lent.write(to.start, &bytes);
        tracing::debug!(?written, %to, "a page was written to just before it was moved");
    }
}

/// Returns device and inode of the file that is mapped at this range. The kernel joins mappings of a file whose bytes follow
/// each other, so the mapping may be larger. Without the right to follow the links in `map_files`, the list of all mappings
/// tells; on btrfs and overlayfs it has another device.
///
/// # Errors
/// There is no mapping of a file.
fn file_of(pid: i32, range: Range) -> io::Result<(u64, u64)> {
    let process = Process::of(pid);
    let around = |error| {
        let mappings = process.maps().map_err(io::Error::other)?;
        mappings.into_iter().find(|m| m.range.covers(range) && m.is_file()).ok_or(error)
    };
    let found = match mapped::file_at(process, range) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            around(error).and_then(|mapping| mapped::file_at(process, mapping.range))
        }
        found => found,
    };
    let FileId { major, minor, inode } = match found {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => around(error)?.file,
        found => found?,
    };
    Ok((libc::makedev(major, minor), inode))
}
