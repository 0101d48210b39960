// SPDX-License-Identifier: Apache-2.0
//! Why memory is left as it is.

use crate::attribute::Attribute;
use std::fmt;

/// Why memory is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// The mapping has this attribute, which forbids huge pages.
    Attribute(Attribute),
    /// It is a `MAP_SHARED` mapping of a file that is not in tmpfs.
    Shared,
    /// `shmem_enabled` is `deny`: shared memory gets no huge pages, not even by a collapse.
    Denied,
    /// It is shared memory that begins at an address which its offset in its file does not match.
    NotCongruent,
    /// It is writable and executable at once.
    WritableCode,
    /// `PROT_NONE`
    NoAccess,
    /// No block fits into the mapping.
    Small,
    /// It is huge already.
    Huge,
    /// Guard pages or pages that a userfaultfd protects are in it.
    Guarded,
    /// Less than half of the block is present.
    Sparse,
    /// Less than half of the block is the process's own: a collapse would copy what a child of fork(2) still
    /// has.
    NotOwn,
    /// The block would add more memory than the budget still has.
    OverBudget,
    /// It is too large for a kernel without `PAGEMAP_SCAN`, which would show where its pages are.
    Unseen,
    /// Its file is mapped so often that one collapse would take the kernel seconds.
    MappedOften,
    /// The CPU time was used up before its pages were read.
    NoTime,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Attribute(attribute) => write!(f, "it {attribute}"),
            Why::Shared => f.write_str("it is a shared mapping (MAP_SHARED) of a file on a disk, or of a device"),
            Why::Denied => f.write_str(
                "shared memory gets no huge pages on this machine, as \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled is 'deny'; 'echo advise' into it allows them",
            ),
            Why::NotCongruent => f.write_str(
                "it is shared memory whose address does not match its offset; the kernel aligns what is mapped after 'echo \
                 advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled' (for files of a tmpfs that is mounted, as \
                 /dev/shm: 'mount -o remount,huge=advise /dev/shm'), so restart the program then",
            ),
            Why::WritableCode => f.write_str("it is writable and executable, as the code of a JIT compiler (--parts jit)"),
            Why::NoAccess => f.write_str("the program cannot access it (PROT_NONE)"),
            Why::Small => f.write_str("its mappings are too small to hold a whole huge page"),
            Why::Huge => f.write_str("it is on huge pages already"),
            Why::Guarded => f.write_str("guard pages or pages protected by a userfaultfd are in it"),
            Why::Sparse => f.write_str("less than half of each of its huge pages would hold data"),
            Why::NotOwn => f.write_str(
                "other processes have most of it too (fork), or it was only read and never written",
            ),
            Why::OverBudget => f.write_str("it would add more memory than is allowed"),
            Why::NoTime => f.write_str("the CPU time that this may take did not suffice to read it"),
            Why::MappedOften => f.write_str("the process maps the same shared memory more than ten thousand times"),
            Why::Unseen => f.write_str("the kernel cannot show where its pages are (Linux 6.7 can)"),
        }
    }
}
