// SPDX-License-Identifier: Apache-2.0
//! A process while it executes one program.

use hugelift_core::proc_stat::Identity;
use hugelift_linux::proc::procfs::Process;

/// A process while it executes one program. By execve(2) it becomes another instance: what is known of its memory is gone then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instance {
    /// Its id, and when it was started.
    pub process: Identity,
    /// Where the stack of its program begins; `None` if the kernel hides that.
    pub stack: Option<u64>,
}

impl Instance {
    /// Returns whether the process has memory, and still executes that program, as far as that can be told.
    pub fn is_whole(&self) -> bool {
        let Ok(stat) = Process::new(self.process.0).stat() else { return false };
        let stack = stat.addresses.map(|addresses| addresses.start_stack);
        stat.is_whole(self.process) && self.stack.zip(stack).is_none_or(|(known, now)| known == now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_another_instance() {
        let stat = Process::OWN.stat().unwrap();
        let stack = stat.addresses.map(|addresses| addresses.start_stack);
        assert!(stack.is_some());
        let of = |stack| Instance { process: stat.identity(), stack };
        assert_eq!([stack, None, Some(1)].map(|stack| of(stack).is_whole()), [true, true, false]);
        assert!(!Instance { process: (stat.pid, stat.start + 1), stack }.is_whole());
    }
}
