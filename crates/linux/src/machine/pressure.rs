// SPDX-License-Identifier: Apache-2.0
//! Reads how short memory is: for the machine, and for the control groups of a process.

use super::cgroup::{ReadText, pressure_files};
use super::{limit_of, read_text};
use crate::faultpoint;
use crate::proc::procfs::Process;
use hugelift_core::pressure::{Pressure, waits};
use std::path::{Path, PathBuf};

/// The machine's pressure.
pub const OF_MACHINE: &str = "/proc/pressure/memory";

/// Returns how short the machine's memory is; `None` where the kernel does not say.
pub fn of_machine() -> Option<Pressure> {
    let path = faultpoint::pressure_file().unwrap_or_else(|| PathBuf::from(OF_MACHINE));
    let share = waits(&read_text(&path)?)?;
    Some(Pressure::Waits { share, is_of_group: false })
}

/// Returns how short memory is for the control groups of a process, from its own group up to the root: the largest share, and
/// what a limit leaves of a group that has no share.
pub fn of_groups(process: Process) -> Vec<Pressure> {
    in_groups(process, &read_text)
}

fn in_groups(process: Process, read: ReadText) -> Vec<Pressure> {
    let groups = read(&process.path("cgroup")).zip(read(Path::new("/proc/self/mountinfo")));
    let files = groups.map(|(groups, mounts)| pressure_files(&groups, &mounts)).unwrap_or_default();
    let shares = files.iter().filter_map(|file| waits(&read(file)?));
    let share = shares.max().map(|share| Pressure::Waits { share, is_of_group: true });
    let limit = limit_of(process, read).filter(|limit| {
        let file = Path::new(&limit.source).with_file_name("memory.pressure");
        read(&file).and_then(|text| waits(&text)).is_none()
    });
    let limit = limit.map(|limit| Pressure::Limit { left: limit.left, bytes: limit.bytes });
    share.into_iter().chain(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn of(files: &[(&str, &str)]) -> Vec<Pressure> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.to_string())
        };
        in_groups(Process::new(7), &read)
    }

    #[test]
    fn issue_31_4_the_group_with_the_largest_share_counts() {
        let some = |percent: &str| format!("some avg10={percent} avg60=0.00 avg300=0.00 total=1\n");
        let (own, around) = (some("1.50"), some("20.00"));
        let mut files = vec![
            ("/proc/7/cgroup", "0::/a/b\n"),
            ("/proc/self/mountinfo", MOUNTS),
            ("/sys/fs/cgroup/a/b/memory.pressure", own.as_str()),
            ("/sys/fs/cgroup/a/memory.pressure", around.as_str()),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/memory.current", "990\n"),
        ];
        let share = |share| Pressure::Waits { share, is_of_group: true };
        assert_eq!(of(&files), [share(2000)]);
        // A limit counts where the group has no share.
        files.remove(3);
        assert_eq!(of(&files), [share(150), Pressure::Limit { left: 10, bytes: 1000 }]);
        assert_eq!(of(&files[..2]), []);
        assert_eq!(of(&[]), []);
    }
}
