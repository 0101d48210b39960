// SPDX-License-Identifier: Apache-2.0
//! The namespace of control groups. A container has one of its own as a rule, in which the groups of all other processes
//! are shown as `/../..` (cgroup_namespaces(7)). A service for a whole machine, in a container that sees all processes,
//! would know neither their containers nor their limits.

use crate::journal::{Level, log};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::path::Path;

/// The namespace of the first process: the machine's first process if this process sees the machine's processes, else the
/// container's.
const FIRST: &str = "/proc/1/ns/cgroup";
const OWN: &str = "/proc/self/ns/cgroup";

/// Enters the namespace of the first process, with this thread and those that it starts. It is the own one unless this is a
/// container that sees the machine's processes. Without the right (CAP_SYS_ADMIN) a line says what that prevents.
pub fn leave_own_namespace() {
    let name = |path: &str| std::fs::read_link(Path::new(path)).ok();
    if name(FIRST).is_none_or(|first| name(OWN) == Some(first)) {
        return;
    }
    if let Err(why) = enter(Path::new(FIRST)) {
        log(
            Level::Warning,
            &format!(
                "cannot enter the machine's namespace of control groups ({why}): no rule holds by unit, control \
                      group or container"
            ),
        );
    }
}

/// Enters a namespace with this thread.
fn enter(namespace: &Path) -> Result<(), String> {
    let namespace = File::open(namespace).map_err(|error| error.to_string())?;
    setns(namespace, CloneFlags::CLONE_NEWCGROUP).map_err(|error| error.desc().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_7_the_namespace_of_another_process_is_entered() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let whole = format!("/proc/{}/ns/cgroup", std::process::id());
        let name = |path: &str| std::fs::read_link(path).expect("a namespace");
        // A namespace belongs to a thread, and no other test is in this one.
        let names = std::thread::spawn(move || {
            let own = "/proc/thread-self/ns/cgroup";
            nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).expect("a namespace of its own");
            let inside = name(own);
            enter(Path::new(&whole)).expect("setns");
            (inside == name(&whole), name(own) == name(&whole))
        });
        assert_eq!(names.join().expect("a thread"), (false, true));
        assert!(enter(Path::new("/proc/self/ns/net")).is_err() && enter(Path::new("/nothing")).is_err());
    }
}
