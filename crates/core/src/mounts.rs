// SPDX-License-Identifier: Apache-2.0
//! Which file systems answer by themselves: whether a file of another user may be read without waiting for a process of
//! that user, or for another machine.

use std::collections::BTreeMap;

/// File systems on disks and in memory. A user who mounts one of the first needs the rights of root for it. Any user may
/// mount the second kind in a namespace of its own.
const LOCAL: &[&str] = &[
    "bcachefs",
    "btrfs",
    "erofs",
    "ext2",
    "ext3",
    "ext4",
    "exfat",
    "f2fs",
    "iso9660",
    "jfs",
    "ntfs3",
    "squashfs",
    "udf",
    "vfat",
    "xfs",
    "zfs",
    "hugetlbfs",
    "ramfs",
    "rootfs",
    "tmpfs",
];
/// It reads what it is mounted over, which may be any file system. Any user may mount it in a namespace of its own.
const OVERLAY: &str = "overlay";
/// These show another device in `/proc/PID/maps` than in stat(2).
const TWO_DEVICES: &[&str] = &["btrfs", OVERLAY];

/// A device number as mountinfo and maps show it: major and minor.
pub type Device = (u32, u32);

/// The mounted file systems: those that the reader sees, and those that another process sees.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Mounts {
    own: BTreeMap<Device, String>,
    theirs: BTreeMap<Device, String>,
}

impl Mounts {
    /// Parses `/proc/self/mountinfo` and the same file of the other process (proc_pid_mountinfo(5)). A line that cannot
    /// be understood is left out: its file system is then unknown.
    pub fn parse(own: &[u8], theirs: &[u8]) -> Mounts {
        Mounts { own: parse(own), theirs: parse(theirs) }
    }

    /// Adds a file system that the kernel has mounted for itself, for example the tmpfs of memfd_create(2).
    pub fn add(&mut self, device: Device, kind: &str) {
        self.own.insert(device, kind.into());
    }

    /// Returns whether a file on `device` can be read without waiting for another user's process or another machine. One
    /// on a file system that is unknown, as it is mounted nowhere any more, is not read.
    pub fn answers(&self, device: Device) -> bool {
        let is_local = |kind: &String| LOCAL.contains(&kind.as_str());
        match (self.own.get(&device), self.theirs.get(&device)) {
            (Some(kind), _) => is_local(kind) || kind == OVERLAY,
            (None, kind) => kind.is_some_and(is_local),
        }
    }

    /// Returns whether files on `device`, as maps shows it, have another device in stat(2).
    pub fn has_two_devices(&self, device: Device) -> bool {
        let kind = self.own.get(&device).or_else(|| self.theirs.get(&device));
        kind.is_some_and(|kind| TWO_DEVICES.contains(&kind.as_str()))
    }

    /// Returns whether files on `device` lie in tmpfs.
    pub fn is_tmpfs(&self, device: Device) -> bool {
        self.own.get(&device).or_else(|| self.theirs.get(&device)).is_some_and(|kind| kind == "tmpfs")
    }

    /// Returns whether the mounts of `device` are known.
    pub fn knows(&self, device: Device) -> bool {
        self.own.contains_key(&device) || self.theirs.contains_key(&device)
    }
}

/// Parses a line such as `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`. Returns the
/// device, and the words from the kind of the file system on.
pub(crate) fn mount(line: &[u8]) -> Option<(Device, impl Iterator<Item = &[u8]>)> {
    let mut words = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
    words.find(|word| *word == b"-")?;
    Some(((major.parse().ok()?, minor.parse().ok()?), words))
}

fn parse(mountinfo: &[u8]) -> BTreeMap<Device, String> {
    let mounts = mountinfo.split(|byte| *byte == b'\n').filter_map(mount);
    let kind = |word| Some(std::str::from_utf8(word).ok()?.to_string());
    mounts.filter_map(|(device, mut words)| Some((device, kind(words.next()?)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[u8] = b"22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw\n\
        23 22 0:24 / /proc rw - proc proc rw\n\
        24 22 0:40 / /home/u/m rw,nosuid shared:9 - fuse.sshfs u@h: rw,user_id=1000\n\
        25 22 0:41 / /srv rw - nfs4 server:/srv rw\n\
        26 22 0:42 /@ /data rw - btrfs /dev/vdb rw\n\
        27 22 0:43 / /var/lib/docker/merged rw - overlay overlay rw,lowerdir=/a\n\
        a line that is none\n";
    const THEIRS: &[u8] = b"91 90 0:50 / /x rw - tmpfs tmpfs rw\n\
        92 90 0:51 / /y rw - overlay overlay rw,lowerdir=/fuse\n\
        93 90 0:52 / /z rw - fuse - rw\n\
        94 90 0:40 / /m rw - tmpfs a lie rw\n";

    #[test]
    fn only_what_is_known_to_answer_is_read() {
        let mounts = Mounts::parse(OWN, THEIRS);
        let read: Vec<Device> =
            [(254, 0), (0, 24), (0, 40), (0, 41), (0, 42), (0, 43), (0, 50), (0, 51), (0, 52), (0, 99)]
                .into_iter()
                .filter(|device| mounts.answers(*device))
                .collect();
        assert_eq!(read, [(254, 0), (0, 42), (0, 43), (0, 50)]);
        assert!(mounts.has_two_devices((0, 42)) && !mounts.has_two_devices((254, 0)));
        assert!(mounts.knows((0, 52)) && !mounts.knows((0, 99)));
    }

    #[test]
    fn what_the_kernel_has_mounted_for_itself_is_added() {
        let mut mounts = Mounts::parse(b"", b"");
        assert!(!mounts.answers((0, 1)));
        mounts.add((0, 1), "tmpfs");
        mounts.add((0, 2), "hugetlbfs");
        assert!(mounts.answers((0, 1)) && mounts.answers((0, 2)));
        assert!(mounts.is_tmpfs((0, 1)) && !mounts.is_tmpfs((0, 2)) && !mounts.is_tmpfs((0, 3)));
    }
}
