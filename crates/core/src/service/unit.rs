// SPDX-License-Identifier: Apache-2.0
//! The systemd unit of a process, by the path of its control group.
//!
//! Users, containers and services make groups of any name below their own. None of these is a unit of the
//! system's manager. That manager puts its units into slices alone, and only it makes groups there. So the
//! unit is the first part of the path behind the slices, and what follows belongs to the unit:
//!
//! ```text
//!   /system.slice/system-postgresql.slice/postgresql@17-main.service/any/group
//!    |----------------- slices ----------| |-------- unit ---------|
//!   /user.slice/user-1000.slice/user@1000.service/app.slice/mariadb.service
//!    |-------- slices --------| |---- unit -----| |--- of that user ------|
//! ```

/// The longest name of a unit and of a file (`UNIT_NAME_MAX` of systemd, `NAME_MAX` of Linux).
const LONGEST: usize = 255;

/// The types of units that hold processes, besides slices (systemd.unit(5)).
pub const SUFFIXES: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];

/// The type of units that hold other units.
pub const SLICE: &str = ".slice";

/// Returns the unit of the system's manager that a process of this control group belongs to. `cgroup` is
/// the path of version 2 in `/proc/PID/cgroup` (cgroups(7)), behind the `0::`.
///
/// The name is as `systemctl` shows it: with the escapes of systemd-escape(1), as in
/// `machine-qemu\x2d1.scope`, but without the `_` by which systemd keeps it apart from the files of the
/// kernel (`cg_escape` in systemd's src/basic/cgroup-util.c).
pub fn system_unit(cgroup: &str) -> Option<&str> {
    let mut around: Option<&str> = None;
    for part in cgroup.strip_prefix('/')?.split('/') {
        let name = part.strip_prefix('_').unwrap_or(part);
        match name.strip_suffix(SLICE) {
            Some(slice) if is_slice_in(around, slice) => around = Some(slice),
            Some(_) => return None,
            None => return is_unit(name).then_some(name),
        }
    }
    None
}

/// Returns whether systemd puts a slice of this name into the slice `around`: `a-b` lies in `a`
/// (systemd.slice(5)). LXC makes groups like `lxc.payload.NAME` beside the slices.
fn is_slice_in(around: Option<&str>, slice: &str) -> bool {
    let own = match around {
        Some(around) => slice.strip_prefix(around).and_then(|rest| rest.strip_prefix('-')),
        None => Some(slice).filter(|slice| !slice.starts_with("lxc.")),
    };
    own.is_some_and(|own| is_stem(own) && !own.contains(['-', '@']))
}

/// Returns whether this is the name of a unit that can hold processes: not that of a template, which ends in `@`.
fn is_unit(name: &str) -> bool {
    let is_template =
        SUFFIXES.iter().filter_map(|suffix| name.strip_suffix(suffix)).any(|stem| stem.ends_with('@'));
    is_unit_or_template(name) && !is_template
}

/// Returns whether this is the name of a unit that can hold processes, or that of a template of them
/// (`unit_name_is_valid` in systemd's src/basic/unit-name.c).
pub fn is_unit_or_template(name: &str) -> bool {
    let stem = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    name.len() <= LONGEST && stem.is_some_and(is_stem)
}

/// Returns whether a name without its suffix has the characters of units alone.
fn is_stem(stem: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    !stem.is_empty() && !stem.starts_with('@') && stem.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_33_units_of_real_groups() {
        for (cgroup, unit) in [
            ("/system.slice/mariadb.service", "mariadb.service"),
            (
                "/system.slice/system-postgresql.slice/postgresql@17-main.service",
                "postgresql@17-main.service",
            ),
            ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
            (
                "/system.slice/system-systemd\\x2dfsck.slice/systemd-fsck@dev-vda1.service",
                "systemd-fsck@dev-vda1.service",
            ),
            ("/system.slice/containerd.service/kubepods/x.service", "containerd.service"),
            ("/system.slice/systemd-udevd.service/udev", "systemd-udevd.service"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/mariadb.service", "user@1000.service"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service"),
            ("/user.slice/user-1000.slice/session-2.scope", "session-2.scope"),
            ("/init.scope", "init.scope"),
            ("/system.slice/docker-5f0c.scope", "docker-5f0c.scope"),
            ("/system.slice/docker-5f0c.scope/system.slice/mariadb.service", "docker-5f0c.scope"),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-9a.scope",
                "cri-containerd-9a.scope",
            ),
            (
                "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/vcpu0",
                "machine-qemu\\x2d1\\x2dvm.scope",
            ),
            ("/machine.slice/libpod-3e.scope/container", "libpod-3e.scope"),
            ("/system.slice/_memory.service", "memory.service"),
            ("/system.slice/run-user-0.mount", "run-user-0.mount"),
            ("/system.slice/cups.socket", "cups.socket"),
        ] {
            assert_eq!(system_unit(cgroup), Some(unit), "{cgroup}");
        }
    }

    #[test]
    fn issue_33_groups_that_are_no_units() {
        for cgroup in [
            "",
            "/",
            "//",
            "mariadb.service",
            "/system.slice",
            "/system.slice/",
            "/docker/5f/system.slice/mariadb.service",
            "/kubepods/burstable/pod1/9a/mariadb.service",
            "/lxc.payload.web/system.slice/mariadb.service",
            "/lxc.payload.web.slice/mariadb.service",
            "/web.slice/system.slice/mariadb.service",
            "/web.slice/web.slice/mariadb.service",
            "/a.slice/a-b-c.slice/mariadb.service",
            "/a-b.slice/mariadb.service",
            "/-.slice/mariadb.service",
            "/.slice/mariadb.service",
            "/../../system.slice/mariadb.service",
            "/system.slice/../mariadb.service",
            "/system.slice/mariadb.service (deleted)",
            "/system.slice/.service",
            "/system.slice/@x.service",
            "/system.slice/postgresql@.service",
            "/system.slice/mariadb.device",
            "/system.slice/maria\ndb.service",
            "/system.slice/maria\u{202e}db.service",
            "/system.slice/maria\u{fffd}db.service",
            "/system.slice/\0mariadb.service",
        ] {
            assert_eq!(system_unit(cgroup), None, "{cgroup:?}");
        }
        assert_eq!(system_unit(&format!("/system.slice/{}.service", "x".repeat(300))), None);
    }

    proptest! {
        #[test]
        fn issue_33_a_user_cannot_choose_the_unit(
            uid in 1000..60000_u32,
            below in "(/|[a-z]|_|\\.slice|\\.service|mariadb|\\.\\.|\\PC){0,20}",
        ) {
            let cgroup = format!("/user.slice/user-{uid}.slice/user@{uid}.service/{below}");
            let unit = format!("user@{uid}.service");
            prop_assert_eq!(system_unit(&cgroup), Some(unit.as_str()));
        }

        #[test]
        fn issue_33_any_text_has_a_valid_unit_or_none(cgroup in "(/|[a-z]|-|_|\\.slice|\\.service|@|\\PC|\\pC){0,20}") {
            if let Some(unit) = system_unit(&cgroup) {
                prop_assert!(is_unit(unit) && cgroup.contains(unit));
            }
        }
    }
}
