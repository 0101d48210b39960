// SPDX-License-Identifier: Apache-2.0
//! The control group of a process, from `/proc/PID/cgroup` (cgroups(7)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Returns the path of the group that tells most: the group of version 2 where systemd uses that version, else the group in
/// systemd's own hierarchy of version 1, else the group of the memory controller.
pub(super) fn path(text: &[u8]) -> Option<PathBuf> {
    let of = |wanted: &str| groups(text).find(|(controllers, _)| has(controllers, wanted));
    let below_root = |(_, path): &(&[u8], &[u8])| *path != b"/";
    let version_2 = || groups(text).find(|(controllers, _)| controllers.is_empty());
    let all = [version_2(), of("name=systemd"), of("memory")];
    let known = || all.iter().flatten();
    let (_, path) = known().find(|group| below_root(group)).or(known().next())?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// Returns the controllers and the path of each line `4:memory:/user/x` or `0::/user.slice/x`.
fn groups(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&b| b == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&b| b == b':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some((controllers, path))
    })
}

fn has(controllers: &[u8], wanted: &str) -> bool {
    controllers.split(|&b| b == b',').any(|one| one == wanted.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_the_group_of_each_version() {
        let of = |text: &str| path(text.as_bytes()).map(|path| path.into_os_string().into_string().unwrap());
        assert_eq!(of("0::/system.slice/a:b.service\n").unwrap(), "/system.slice/a:b.service");
        let both = "12:cpu,memory:/m\n1:name=systemd:/s/x\n0::/\n";
        assert_eq!(of(both).unwrap(), "/s/x");
        assert_eq!(of("12:cpu,memory:/m\n").unwrap(), "/m");
        assert_eq!(of("0::/\n").unwrap(), "/");
        assert_eq!([of(""), of("0:/x"), of("3:cpu:/y")], [const { None }; 3]);
    }
}
