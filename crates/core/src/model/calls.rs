// SPDX-License-Identifier: Apache-2.0
//! The model's system calls: what Linux does, or the errno that it returns.

use super::{Behind, EBADF, EEXIST, EFAULT, EINVAL, ENOMEM, File, Memory, Model, fail};
use crate::addr::{Addr, PageSize, Range};
use crate::maps::Prot;
use crate::placement::Placement;
use crate::scratch::{Scratch, moved};
use crate::target::{Fault, FileHandle, MapStored, Place, Source, Target};

impl Target for Model {
    fn mmap(&mut self, range: Range, prot: Prot, source: Source, place: Place) -> Result<(), Fault> {
        const CALL: &str = "mmap";
        let injected = self.enter(CALL, range);
        if injected.is_ok() && !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        // Linux unmaps the range of MAP_FIXED before it finds out that there is no huge page.
        if place == Place::Over {
            self.space.remove(range);
            self.sweep();
        }
        injected?;
        if place != Place::Over && !self.space.within(range).is_empty() {
            return fail(CALL, range, EEXIST);
        }
        let made = self.make(range, prot, source);
        if let Ok(memory) = made {
            self.space.insert(range, memory);
            self.saw_wx |= prot.is_wx();
            if place == Place::Free {
                self.scratch.add(range);
            }
        }
        self.sweep();
        made.map(drop).or_else(|errno| fail(CALL, range, errno))
    }

    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn release(&mut self, range: Range) -> Result<(), Fault> {
        for part in self.scratch.within(range) {
            self.unmap(part)?;
            self.give_up(part);
        }
        Ok(())
    }

    fn mprotect(&mut self, range: Range, prot: Prot) -> Result<(), Fault> {
        const CALL: &str = "mprotect";
        self.enter(CALL, range)?;
        if !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        if !self.space.cover(range) {
            return fail(CALL, range, ENOMEM);
        }
        self.saw_wx |= prot.is_wx();
        self.space.change(range, |memory| memory.prot = prot);
        Ok(())
    }

    fn mremap(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let mut rest = from;
        while !rest.is_empty() {
            let piece = Range { end: rest.end.min(Addr(rest.start.0.saturating_add(self.piece))), ..rest };
            let over = moved(piece, from, to).map_or(to, |over| over.start);
            self.move_piece(piece, over)?;
            rest.start = piece.end;
        }
        Ok(())
    }

    fn advise_huge(&mut self, range: Range) -> Result<(), Fault> {
        const CALL: &str = "madvise(MADV_HUGEPAGE)";
        self.enter(CALL, range)?;
        if !self.has_thp || !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        self.space.change(range, |memory| {
            if let Behind::Anonymous { advised } | Behind::Original { advised } = &mut memory.behind {
                *advised = true;
            }
        });
        Ok(())
    }

    fn bind(&mut self, range: Range, placement: Option<Placement>) -> Result<(), Fault> {
        const CALL: &str = "mbind";
        self.enter(CALL, range)?;
        if !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        if !self.space.cover(range) {
            return fail(CALL, range, EFAULT);
        }
        self.space.change(range, |memory| memory.bound = placement.is_some());
        Ok(())
    }

    fn populate(&mut self, range: Range, _page: PageSize) -> Result<(), Fault> {
        const CALL: &str = "madvise(MADV_POPULATE_WRITE)";
        self.enter(CALL, range)?;
        if !self.space.cover(range) {
            return fail(CALL, range, ENOMEM);
        }
        if !self.is_aligned(range) || self.space.within(range).iter().any(|(_, m)| !m.prot.write) {
            return fail(CALL, range, EINVAL);
        }
        self.space.change(range, |memory| memory.resident = true);
        Ok(())
    }

    fn fault_in(&mut self, range: Range, _page: PageSize) -> Result<(), Fault> {
        const CALL: &str = "process_vm_readv";
        self.enter(CALL, range)?;
        if !self.space.cover(range) {
            return fail(CALL, range, EFAULT);
        }
        Ok(())
    }

    fn copy(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        const CALL: &str = "copy";
        self.enter(CALL, from)?;
        let Some(over) = Range::sized(to, from.len()) else { return fail(CALL, from, EFAULT) };
        let writable = self.space.within(over).iter().all(|(_, m)| m.prot.write);
        if !self.space.cover(from) || !self.space.cover(over) || !writable {
            return fail(CALL, from, EFAULT);
        }
        let bytes = self.bytes_of(from);
        for (part, memory) in self.space.within(over) {
            if memory.copy_on_write {
                let held = self.contents(part, memory);
                let own = self.new_store();
                for (r, content) in held {
                    self.write(own, r, content);
                }
                let copy = Memory { store: own, offset: part.start.0, copy_on_write: false, ..memory };
                self.space.insert(part, copy);
            }
        }
        self.space.change(over, |memory| memory.resident = true);
        self.paste(bytes, from.start, to);
        Ok(())
    }

    fn collapse(&mut self, range: Range) -> Result<(), Fault> {
        // In the model, everything that can be huge is huge already.
        self.enter("madvise(MADV_COLLAPSE)", range)
    }

    fn huge_bytes(&mut self, range: Range) -> Result<u64, Fault> {
        self.enter("smaps", range)?;
        let huge = self.huge(range);
        Ok(huge - huge.min(self.scarce))
    }

    fn memfd(&mut self, page: PageSize, bytes: u64) -> Result<FileHandle, Fault> {
        const CALL: &str = "memfd_create";
        let range = Range::sized(Addr(0), bytes).unwrap_or_default();
        self.enter(CALL, range)?;
        if !self.pools.contains_key(&page) {
            return fail(CALL, range, EINVAL);
        }
        let handle = self.next_file;
        self.next_file += 1;
        let store = self.new_store();
        self.files.insert(handle, File { store, pool: Some(page), bytes });
        Ok(FileHandle(handle))
    }

    fn map_stored(&mut self, copies: &[MapStored]) -> Vec<Result<(), Fault>> {
        copies.iter().map(|copy| self.map_copy(copy)).collect()
    }

    fn close(&mut self, file: FileHandle) -> Result<(), Fault> {
        const CALL: &str = "close";
        self.enter(CALL, Range::default())?;
        if self.files.remove(&file.0).is_none() {
            return fail(CALL, Range::default(), EBADF);
        }
        self.sweep();
        Ok(())
    }
}

impl Model {
    /// munmap(2)
    pub(super) fn unmap(&mut self, range: Range) -> Result<(), Fault> {
        const CALL: &str = "munmap";
        self.enter(CALL, range)?;
        if !self.is_aligned(range) {
            return fail(CALL, range, EINVAL);
        }
        self.space.remove(range);
        self.sweep();
        Ok(())
    }

    /// mremap(2) with `MREMAP_FIXED`.
    fn move_piece(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        const CALL: &str = "mremap";
        let injected = self.enter(CALL, from);
        let Some(over) = Range::sized(to, from.len()) else { return fail(CALL, from, EINVAL) };
        if injected.is_err() && self.failed_move_unmaps {
            self.space.remove(over);
            self.sweep();
        }
        injected?;
        if self.keeps {
            return Err(Fault::Kept("a thread waits".into()));
        }
        let parts = self.space.within(from);
        let pages: Vec<PageSize> = parts
            .iter()
            .filter_map(|(_, m)| if let Behind::Hugetlb(page) = m.behind { Some(page) } else { None })
            .collect();
        if !self.is_aligned(from)
            || !self.is_aligned(over)
            || pages.iter().any(|page| !to.is_aligned(*page) || !self.moves_hugetlb)
            || from.intersect(over).is_some()
        {
            return fail(CALL, from, EINVAL);
        }
        if !self.space.cover(from) {
            return fail(CALL, from, EFAULT);
        }
        self.space.remove(from);
        for (part, memory) in parts {
            if let Some(there) = moved(part, from, to) {
                self.space.insert(there, memory);
            }
        }
        self.give_up(from);
        self.sweep();
        Ok(())
    }
}
