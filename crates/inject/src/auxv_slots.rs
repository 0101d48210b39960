// SPDX-License-Identifier: Apache-2.0
//! The auxiliary vector on the stack that execve(2) has made:
//! `argc, argv..., NULL, envp..., NULL, (key, value)..., (AT_NULL, 0)`.

use hugelift_core::addr::Addr;
use hugelift_core::maps::Mapping;
use hugelift_linux::proc::memory;

/// The addresses of the values that the helper changes; 0 for a missing one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct AuxvSlots {
    /// Address of the value of `AT_ENTRY`.
    pub entry: Addr,
    /// Address of the value of `AT_PHDR`.
    pub phdr: Addr,
}

impl AuxvSlots {
    /// Finds the vector of process `pid`, whose stack pointer is `sp` at its first instruction. `None` if it
    /// has no `AT_ENTRY` of the value `entry`.
    pub fn find(pid: i32, sp: Addr, mappings: &[Mapping], entry: u64) -> Option<AuxvSlots> {
        let stack = mappings.iter().find(|m| m.range.contains(sp))?;
        let mut bytes = vec![0; (stack.range.end.0 - sp.0) as usize];
        let len = memory::read(pid, sp, &mut bytes).ok()?;
        let word = |c: &[u8]| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        let words: Vec<u64> = bytes[..len].chunks_exact(8).map(word).collect();
        let argc = usize::try_from(*words.first()?).ok()?;
        let envp = argc.checked_add(2)?;
        let end = words.get(envp..)?.iter().position(|w| *w == 0)? + envp;
        let start = end + 1;
        let pairs: Vec<&[u64]> = words.get(start..)?.chunks_exact(2).take_while(|p| p[0] != 0).collect();
        let slot = |key: u64| {
            let index = pairs.iter().position(|p| p[0] == key)?;
            Some((pairs[index][1], sp.checked_add(8 * (start + 2 * index + 1) as u64)?))
        };
        let (value, at) = slot(libc::AT_ENTRY)?;
        let phdr = slot(libc::AT_PHDR).map_or(Addr(0), |(_, at)| at);
        (value == entry).then_some(AuxvSlots { entry: at, phdr })
    }
}
