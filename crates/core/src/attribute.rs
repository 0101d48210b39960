// SPDX-License-Identifier: Apache-2.0
//! Attributes of a mapping besides its protection: what a program has asked for with mlock(2),
//! madvise(2), mbind(2), pkey_mprotect(2) or userfaultfd(2), which a copy would not have; and whether it may be read.

use std::fmt;

/// An attribute, as smaps or numa_maps shows it (proc_pid_smaps(5), proc_pid_numa_maps(5)).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Attribute {
    /// mlock(2) or mlockall(2).
    Locked,
    /// `MADV_DONTDUMP`.
    NoDump,
    /// `MADV_DONTFORK`.
    NoFork,
    /// `MADV_WIPEONFORK`.
    WipedOnFork,
    /// Faults in it go to a userfaultfd.
    Watched,
    /// A memory protection key other than the first.
    Keyed,
    /// Tagged memory (`PROT_MTE`).
    Tagged,
    /// A memory policy of its own (mbind(2)).
    Placed,
    /// It grows downwards when the space below is touched (`MAP_GROWSDOWN`, the stack), so that space
    /// must stay free.
    GrowsDown,
    /// mseal(2): until the process ends nobody can replace it.
    Sealed,
    /// `MADV_NOHUGEPAGE`: the program does not want huge pages here.
    NoHuge,
    /// Its file is on a file system that may not answer ([`crate::mounts`]), and the process is another user's: to read
    /// the memory could mean to wait for ever.
    Unread,
}

impl Attribute {
    /// Returns the attribute that a word of the `VmFlags` line stands for.
    pub fn of_flag(flag: &[u8]) -> Option<Attribute> {
        Some(match flag {
            b"lo" => Attribute::Locked,
            b"dd" => Attribute::NoDump,
            b"dc" => Attribute::NoFork,
            b"wf" => Attribute::WipedOnFork,
            b"um" | b"uw" | b"ui" => Attribute::Watched,
            b"gd" => Attribute::GrowsDown,
            b"mt" => Attribute::Tagged,
            b"nh" => Attribute::NoHuge,
            b"sl" => Attribute::Sealed,
            _ => return None,
        })
    }

    /// Returns whether huge pages would violate it even where the memory is not copied.
    pub fn forbids_huge(self) -> bool {
        matches!(self, Attribute::Watched | Attribute::NoHuge | Attribute::Unread)
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attribute::Locked => "is locked (mlock)",
            Attribute::NoDump => "is left out of core dumps (MADV_DONTDUMP)",
            Attribute::NoFork => "is not inherited by children (MADV_DONTFORK)",
            Attribute::WipedOnFork => "is zeroed in children (MADV_WIPEONFORK)",
            Attribute::Watched => "is watched by a userfaultfd",
            Attribute::Keyed => "has a protection key",
            Attribute::Tagged => "has memory tags (PROT_MTE)",
            Attribute::Placed => "has a memory policy of its own (mbind)",
            Attribute::GrowsDown => "grows downwards (MAP_GROWSDOWN)",
            Attribute::Unread => {
                "is not read, as another user or another machine serves the file system of its file, and may not answer"
            }
            Attribute::Sealed => "is sealed (mseal): the kernel lets nobody replace it",
            Attribute::NoHuge => "is excluded from huge pages by the program (MADV_NOHUGEPAGE)",
        })
    }
}
