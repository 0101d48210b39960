// SPDX-License-Identifier: Apache-2.0
//! The mappings whose memory can be collapsed.

use super::why::Why;
use crate::addr::{PageSize, Range};
use crate::attribute::Attribute;
use crate::maps::Prot;
use crate::shared_memory::is_congruent;

/// Whose memory an area is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// The process's own (`MAP_PRIVATE`).
    Private,
    /// Shared memory; the area begins at this offset in its file of tmpfs ([`crate::shared_memory`]).
    Memory(u64),
    /// Shared memory, on a machine that gives it no huge pages (`shmem_enabled` is `deny`).
    Denied,
    /// A file's on a disk, or a device's (`MAP_SHARED`).
    File,
}

/// A mapping of memory, or the part of one that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// Its addresses.
    pub range: Range,
    /// Its protection.
    pub prot: Prot,
    /// Whose it is.
    pub sharing: Sharing,
    /// It is wanted as code that the program makes ([`crate::snapshot::Part::Jit`]), and may be writable at the same time. Its
    /// protection stays.
    pub jit: bool,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

impl Area {
    /// Returns why nothing of it is collapsed. Locked memory is collapsed: its pages stay in memory, and
    /// khugepaged collapses it too.
    pub fn refusal(&self, page: PageSize) -> Option<Why> {
        let forbids = self.attributes.iter().find(|attribute| attribute.forbids_huge());
        match (self.prot, forbids) {
            (_, Some(attribute)) => Some(Why::Attribute(*attribute)),
            (prot, _) if prot.is_wx() && !self.jit => Some(Why::WritableCode),
            (prot, _) if !prot.read && !prot.write && !prot.exec => Some(Why::NoAccess),
            _ if self.sharing == Sharing::File => Some(Why::Shared),
            _ if self.sharing == Sharing::Denied => Some(Why::Denied),
            _ if self.range.inner(page).is_none() => Some(Why::Small),
            _ => match self.sharing {
                Sharing::Memory(offset) if !is_congruent(self.range, offset, page) => Some(Why::NotCongruent),
                _ => None,
            },
        }
    }
}
