// SPDX-License-Identifier: Apache-2.0
//! Finds out whether two processes share one memory. A child of vfork(2) shares its parent's until it executes a program.

use hugelift_core::proc_stat::Stat;
use nix::errno::Errno;

/// Returns whether a process has the memory of its parent, as after vfork(2). Where this kernel cannot tell, it has not.
pub fn is_part_of_its_parent(stat: &Stat) -> bool {
    shares_memory(stat.pid, stat.parent) == Ok(true)
}

/// Returns whether two processes have one address space (kcmp(2)). If this process may not ask about one of them, another user
/// owns it. Then the two share no memory: else the other process would be untraceable as well.
///
/// # Errors
/// kcmp(2): this kernel cannot tell.
pub fn shares_memory(one: u32, other: u32) -> Result<bool, Errno> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp(2) takes numbers only.
    match Errno::result(unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) }) {
        Ok(order) => Ok(order == 0),
        Err(Errno::ESRCH | Errno::EPERM | Errno::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_by_fork_does_not_share_the_memory() {
        let own = std::process::id();
        assert_eq!(shares_memory(own, own), Ok(true));
        // It is made by vfork(2), and has executed its program when it is returned.
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        assert_eq!(shares_memory(own, child.id()), Ok(false));
        assert_eq!(shares_memory(own, u32::MAX >> 1), Ok(false), "there is no such process");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
