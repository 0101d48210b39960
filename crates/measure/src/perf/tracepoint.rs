// SPDX-License-Identifier: Apache-2.0
//! The numbers by which perf_event_open(2) knows the tracepoints of the kernel.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Where tracefs may be mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Returns the number of a tracepoint, `SYSTEM/NAME`, if its file can be read.
pub(crate) fn number(name: &str) -> Option<u64> {
    let id = |root: &&str| std::fs::read_to_string(format!("{root}/events/{name}/id")).ok();
    TRACEFS.iter().find_map(id).or_else(|| unmounted(name).ok())?.trim().parse().ok()
}

/// Reads the number from a tracefs that nobody else sees. Not every machine has one mounted, and hugelift does not change
/// that: this one is attached to no folder, and ends with its descriptor (fsmount(2), Linux 5.2).
fn unmounted(name: &str) -> io::Result<String> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let path = Path::new("events").join(name).join("id");
    let file = openat(&root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(64).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_6_a_tracefs_that_is_mounted_nowhere_has_the_same_numbers() {
        let name = "raw_syscalls/sys_enter";
        let text = match unmounted(name) {
            Ok(text) => text,
            Err(why) => {
                println!("SKIP: {why}");
                return;
            }
        };
        let found: u64 = text.trim().parse().expect("a number");
        assert!(found > 0);
        assert_eq!(number(name), Some(found));
        assert!(unmounted("raw_syscalls/none").is_err());
    }
}
