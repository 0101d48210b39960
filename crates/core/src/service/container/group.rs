// SPDX-License-Identifier: Apache-2.0
//! The container and the pod of a process, by the path of its control group.
//!
//! ```text
//!   /system.slice/docker-ID.scope                                    Docker
//!   /machine.slice/libpod-ID.scope/container                         Podman
//!   /kubepods.slice/.../kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//!   /kubepods/burstable/podUID/ID                                    without systemd
//! ```
//!
//! Of several ids the first counts: a container may make groups of any name below its own. So may a user below
//! `user@UID.service`, a service below its own unit (`Delegate=` in systemd.resource-control(5)), and the root of a container of
//! LXC or nspawn below that. So the containers of users, and those inside of a unit, such as Quadlet's, are not known. A rule
//! takes the latter by their unit.

/// The characters of an id: 64 hexadecimal digits.
const ID: usize = 64;
/// The characters of the number of a pod.
const UID: usize = 36;
/// What runtimes put before the id.
const PREFIXES: [&str; 6] = ["cri-containerd-", "libpod-payload-", "libpod-", "docker-", "crio-", "nerdctl-"];
/// Podman puts the groups of its pods, which have ids too, into this one.
const PARENT_OF_PODS: &str = "libpod_parent";

/// A container as the path of a control group shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Group {
    /// The id of the container: 64 hexadecimal digits.
    pub id: String,
    /// The number of its pod, with `-` between its parts.
    pub pod: Option<String>,
}

/// Returns the container of a process of this control group; `None` if it is in none, or in one of a user.
pub fn container(cgroup: &str) -> Option<Group> {
    let (mut pod, mut before) = (None, "");
    for name in cgroup.strip_prefix('/')?.split('/') {
        if let Some(id) = id(name).filter(|id| *id != name || before != PARENT_OF_PODS) {
            return Some(Group { id: id.to_string(), pod });
        }
        if is_delegated(name) {
            return None;
        }
        pod = uid_of_pod(name).or(pod);
        before = name;
    }
    None
}

/// Returns whether somebody else than root's managers of containers may make groups of any name below this one.
fn is_delegated(name: &str) -> bool {
    let is_unit = name.ends_with(".service") || name.ends_with(".scope");
    is_unit || name == "user.slice" || name.starts_with("user-") || name.starts_with("lxc") || name == ".."
}

/// Returns whether this is the id of a container, or of an image.
pub fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the id in the name of a group.
fn id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    Some(rest).filter(|id| is_id(id))
}

/// Returns the number in the name of the group of a pod: `podUID`, or `kubepods-burstable-podUID.slice` with `_` for `-`.
fn uid_of_pod(name: &str) -> Option<String> {
    let (before, uid) = name.strip_suffix(".slice").unwrap_or(name).rsplit_once("pod")?;
    let is_pod = before.is_empty() || before.starts_with("kubepods-") && before.ends_with('-');
    let uid = uid.replace('_', "-");
    // The number of a static pod is the hash of its file, without `-`.
    let is_uid = matches!(uid.len(), 32 | UID) && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (is_pod && is_uid).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const B: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
    const POD: &str = "1c0fe1f4-65d4-4a3c-8b38-1f0b4a3d9e11";

    fn id_of(path: &str) -> Option<String> {
        container(&path.replace("ID", A).replace("OTHER", B)).map(|group| group.id)
    }

    #[test]
    fn issue_33_3_containers_of_real_groups() {
        for path in [
            "/system.slice/docker-ID.scope",
            "/docker/ID",
            "/docker/ID/init",
            "/system.slice/docker-ID.scope/system.slice/docker-OTHER.scope",
            "/machine.slice/libpod-ID.scope",
            "/machine.slice/libpod-ID.scope/container",
            "/machine.slice/machine-libpod_pod_OTHER.slice/libpod-ID.scope",
            "/libpod_parent/libpod-ID",
            "/libpod_parent/OTHER/libpod-ID",
            "/default/ID",
            "/system.slice/nerdctl-ID.scope",
            "/kubepods/besteffort/pod1c0fe1f4-65d4-4a3c-8b38-1f0b4a3d9e11/ID",
            "/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container",
        ] {
            assert_eq!(id_of(path).as_deref(), Some(A), "{path}");
        }
    }

    #[test]
    fn issue_33_3_groups_that_are_no_containers() {
        for path in [
            "",
            "/",
            "ID",
            "/system.slice/mariadb.service",
            "/machine.slice/libpod-conmon-ID.scope",
            "/machine.slice/machine-libpod_pod_ID.slice",
            "/libpod_parent/ID",
            "/default/one",
            "/docker/IDa",
            "/docker/../ID",
            "/system.slice/web.service/libpod-payload-ID",
            "/system.slice/web.service/docker-ID.scope",
            "/machine.slice/machine-guest.scope/system.slice/docker-ID.scope",
            "/lxc.payload.guest/docker-ID.scope",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
            "/user@1000.service/docker-ID.scope",
        ] {
            assert_eq!(id_of(path), None, "{path}");
        }
        assert_eq!(container(&format!("/docker/{}", A.to_uppercase())), None);
    }

    #[test]
    fn issue_33_3_pods_of_real_groups() {
        let with_low = POD.replace('-', "_");
        let of = |path: String| container(&path).and_then(|group| group.pod);
        let systemd =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{with_low}.slice");
        assert_eq!(of(format!("{systemd}/cri-containerd-{A}.scope")).as_deref(), Some(POD));
        assert_eq!(of(format!("/kubepods/burstable/pod{POD}/{A}")).as_deref(), Some(POD));
        let guaranteed = format!("/kubepods.slice/kubepods-pod{with_low}.slice/crio-{A}.scope");
        assert_eq!(of(guaranteed).as_deref(), Some(POD));
        let fixed = "0123456789abcdef0123456789abcdef";
        assert_eq!(of(format!("/kubepods/pod{fixed}/{A}")).as_deref(), Some(fixed));
        assert_eq!(of(format!("/docker/{A}/pod{POD}")), None);
        assert_eq!(of(format!("/my-pod{POD}/{A}")), None);
    }

    proptest! {
        #[test]
        fn issue_33_3_a_container_cannot_choose_another_one(
            below in "(/|[a-z]|docker-|libpod-|\\.scope|pod|\\.\\.|[0-9a-f]{64}|\\PC){0,12}",
        ) {
            let group = container(&format!("/system.slice/docker-{A}.scope/{below}"));
            prop_assert_eq!(group, Some(Group { id: A.into(), pod: None }));
        }

        #[test]
        fn issue_33_3_a_user_has_no_container(
            uid in 1000..60000_u32,
            below in "(/|[a-z]|docker-|libpod-|\\.scope|[0-9a-f]{64}|\\PC){0,12}",
        ) {
            let path = format!("/user.slice/user-{uid}.slice/user@{uid}.service/{below}");
            prop_assert_eq!(container(&path), None);
        }

        #[test]
        fn issue_33_3_any_text_has_a_valid_id_or_none(
            path in "(/|[a-z]|-|_|docker-|\\.scope|pod|[0-9a-f]{63,65}|\\PC|\\pC){0,12}",
        ) {
            if let Some(group) = container(&path) {
                prop_assert!(is_id(&group.id) && path.contains(&group.id));
            }
        }
    }
}
