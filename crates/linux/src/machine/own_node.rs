// SPDX-License-Identifier: Apache-2.0
//! The memory node on which the calling thread allocates (set_mempolicy(2)), and the nodes of pages that it has mapped
//! (move_pages(2)).

use hugelift_core::addr::{PageSize, Range};
use std::io;
use std::ptr;

const MPOL_PREFERRED: libc::c_long = 1;

/// The bits in a mask of nodes: the most that a kernel is built for (CONFIG_NODES_SHIFT is 10 at most).
const BITS: usize = 1024;
const WORD: usize = libc::c_ulong::BITS as usize;
/// The kernel reads a bit less than it is told.
const COUNT: libc::c_long = BITS as libc::c_long + 1;

type Mask = [libc::c_ulong; BITS / WORD];

/// The calling thread prefers one node for new memory until this is dropped. Its policy is then as it was.
#[derive(Debug)]
pub struct Preferred {
    mode: libc::c_int,
    mask: Mask,
    /// A policy is a thread's, so that this must not go to another one.
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Preferred {
    /// Prefers `node`.
    ///
    /// # Errors
    /// Fails if there is no such node, or the thread may have no memory there.
    pub fn set(node: u32) -> io::Result<Preferred> {
        let before = current()?;
        let mut mask = Mask::default();
        let word = mask.get_mut(node as usize / WORD).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node as usize % WORD);
        set(MPOL_PREFERRED, &mask)?;
        Ok(before)
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        if let Err(error) = set(self.mode.into(), &self.mask) {
            tracing::debug!(%error, "the memory policy of a thread");
        }
    }
}

fn current() -> io::Result<Preferred> {
    let (mut mode, mut mask) = (0, Mask::default());
    // SAFETY: get_mempolicy(2) writes to a number and a mask of the stated length, which live through the call.
    let done = unsafe {
        let (mode, mask) = (&raw mut mode, mask.as_mut_ptr());
        libc::syscall(libc::SYS_get_mempolicy, mode, mask, COUNT, ptr::null::<u8>(), 0)
    };
    let before = Preferred { mode, mask, _of_thread: std::marker::PhantomData };
    match done {
        0 => Ok(before),
        _ => {
            // There is nothing to restore.
            std::mem::forget(before);
            Err(io::Error::last_os_error())
        }
    }
}

fn set(mode: libc::c_long, mask: &Mask) -> io::Result<()> {
    // An empty mask is that of a policy without nodes.
    let mask = if mask.iter().all(|word| *word == 0) { ptr::null() } else { mask.as_ptr() };
    let count = if mask.is_null() { 0 } else { COUNT };
    // SAFETY: set_mempolicy(2) reads a mask of the stated length, which lives through the call.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, count) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the node of each page of memory of this process, one for each `page` bytes of the range. It is `None` for one
/// that is not present. Nothing is moved.
///
/// # Errors
/// The kernel has no nodes (CONFIG_NUMA), or the range is not mapped.
pub fn nodes_of_own(range: Range, page: PageSize) -> io::Result<Vec<Option<u32>>> {
    let pages: Vec<u64> = (range.start.0..range.end.0).step_by(page.bytes() as usize).collect();
    let mut status = vec![0 as libc::c_int; pages.len()];
    // SAFETY: without nodes to move to, move_pages(2) reads the addresses and writes as many numbers.
    let done = unsafe {
        let (from, to) = (pages.as_ptr(), status.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), from, ptr::null::<libc::c_int>(), to, 0)
    };
    match done {
        0 => Ok(status.into_iter().map(|node| node.try_into().ok()).collect()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::Addr;

    #[test]
    fn issue_33_8_a_thread_prefers_a_node_for_a_while() {
        let before = match current() {
            Err(error) => return println!("SKIP: no NUMA: {error}"),
            Ok(before) => (before.mode, before.mask),
        };
        let preferred = Preferred::set(0).expect("node 0");
        let within = current().map(|now| (now.mode, now.mask[0])).expect("a policy");
        assert_eq!(within, (1, 1));
        drop(preferred);
        assert_eq!(current().map(|now| (now.mode, now.mask)).expect("a policy"), before);
        assert!(Preferred::set(1023).is_err() && Preferred::set(u32::MAX).is_err());
        let memory = vec![1u8; 3 << 12];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(1 << 12);
        let range = Range::sized(Addr(start), 2 << 12).expect("a range");
        let nodes = nodes_of_own(range, PageSize::SMALL).expect("nodes");
        assert!(nodes.len() == 2 && nodes.iter().all(Option::is_some), "{nodes:?}");
    }
}
