// SPDX-License-Identifier: Apache-2.0
//! Where the container runtimes of a machine keep what they know of a container. All of it is root's: what a user keeps of own
//! containers below the home folder is not read.

use super::trusted::read;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hugelift_core::printable::Escape as _;
use hugelift_core::service::container::described::Container;
use hugelift_core::service::container::oci::Writer;
use hugelift_core::service::container::{docker, oci, storage};
use std::path::{Path, PathBuf};

/// The bytes of a file at most.
const MOST: u64 = 4 << 20;
/// The namespaces of containerd at most.
const MOST_NAMESPACES: usize = 64;
/// The folders of states of containerd: its own, and those of Docker, k3s and RKE2, k0s, and MicroK8s.
const CONTAINERD: [&str; 5] = [
    "run/containerd",
    "run/docker/containerd/daemon",
    "run/k3s/containerd",
    "run/k0s/containerd",
    "var/snap/microk8s/common/run/containerd",
];
/// The folder of tasks in these.
const TASKS: &str = "io.containerd.runtime.v2.task";
/// The stores of Podman and CRI-O (containers-storage.conf(5)): what lasts, and what a boot clears.
const STORES: [&str; 2] = ["var/lib/containers/storage", "run/containers/storage"];
/// The folder of containers in these.
const CONTAINERS: &str = "overlay-containers";
/// The lists of containers there. The second has the containers that are lost with a boot.
const LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];

/// Reads what is known of a container; `None` if no runtime knows it. `root` is the root directory. The id must be valid.
pub fn find(root: &Path, id: &str) -> Option<Container> {
    let sources = [of_containerd(root, id), of_store(root, id), of_docker(root, id)];
    sources.into_iter().flatten().reduce(|mut known, more| {
        known.add(&more);
        known
    })
}

fn of_containerd(root: &Path, id: &str) -> Option<Container> {
    let namespaces = CONTAINERD.iter().flat_map(|state| folders(&root.join(state).join(TASKS)));
    let parse = |json: &[u8]| oci::parse(json, Writer::Containerd);
    namespaces.into_iter().find_map(|folder| parsed(&folder.join(id).join("config.json"), parse))
}

/// Returns the folders in a folder.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).take(MOST_NAMESPACES).collect()
}

fn of_store(root: &Path, id: &str) -> Option<Container> {
    let stores = STORES.map(|store| root.join(store));
    let config = |store: &PathBuf| store.join(CONTAINERS).join(id).join("userdata/config.json");
    let parse = |json: &[u8]| oci::parse(json, Writer::CriO);
    let mut container = stores.iter().find_map(|store| parsed(&config(store), parse))?;
    let lists = stores.iter().flat_map(|store| LISTS.map(|list| (store, store.join(CONTAINERS).join(list))));
    let image = |(store, list): (&PathBuf, PathBuf)| {
        Some((store.clone(), parsed(&list, |json| storage::image_of(json, id))?))
    };
    if let Some((store, image)) = lists.into_iter().find_map(image) {
        container.add_image(image.name.as_ref());
        container.add(&labels_of_image(&store, &image.id).unwrap_or_default());
    }
    Some(container)
}

/// Reads the labels of an image. The file with its configuration has the digest for a name, in base64 (`dataPath` of
/// containers/storage's images.go).
fn labels_of_image(store: &Path, id: &str) -> Option<Container> {
    let name = format!("={}", BASE64_STANDARD.encode(format!("sha256:{id}")));
    parsed(&store.join("overlay-images").join(id).join(name), |json| Some(storage::labels(json)))
}

fn of_docker(root: &Path, id: &str) -> Option<Container> {
    parsed(&root.join("var/lib/docker/containers").join(id).join("config.v2.json"), docker::parse)
}

fn parsed<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    match read(path, MOST) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::debug!(path = %path.escaped(), %error, "a container");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("write");
    }

    #[test]
    fn issue_33_3_each_runtime_is_asked() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, [a, b, c, d]) = (dir.path(), ["a", "b", "c", "d"].map(|digit| digit.repeat(64)));
        let containerd = r#"{"annotations":{"io.kubernetes.cri.image-name":"one:1"}}"#;
        write(root, &format!("run/containerd/{TASKS}/k8s.io/{a}/config.json"), containerd);
        write(
            root,
            &format!("var/lib/docker/containers/{b}/config.v2.json"),
            r#"{"Config":{"Image":"two:2"}}"#,
        );
        let store = "var/lib/containers/storage";
        write(
            root,
            &format!("{store}/{CONTAINERS}/{c}/userdata/config.json"),
            r#"{"annotations":{"k":"v"}}"#,
        );
        let metadata = r#"{\"image-name\":\"three:3\"}"#;
        let list = format!(r#"[{{"id":"{c}","image":"{d}","metadata":"{metadata}"}}]"#);
        write(root, &format!("{store}/{CONTAINERS}/containers.json"), &list);
        let name = BASE64_STANDARD.encode(format!("sha256:{d}"));
        write(root, &format!("{store}/overlay-images/{d}/={name}"), r#"{"config":{"Labels":{"app":"db"}}}"#);
        let shown = |id: &str| find(root, id).map(|container| container.to_string());
        assert_eq!(shown(&b).as_deref(), Some("image two:2"));
        assert_eq!(shown(&c).as_deref(), Some("image three:3, label app=db, label k=v"));
        assert_eq!(shown(&a).as_deref(), Some("image one:1, label io.kubernetes.cri.image-name=one:1"));
        assert_eq!(shown(&d), None);
    }

    #[test]
    fn issue_33_3_bad_files_of_runtimes_are_passed_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, a) = (dir.path(), "a".repeat(64));
        let config = format!("run/containerd/{TASKS}/k8s.io/{a}/config.json");
        for bad in ["", "[", &"[".repeat(1 << 20), "\u{0}"] {
            write(root, &config, bad);
            assert_eq!(find(root, &a), None);
        }
        fs::File::create(root.join(&config)).and_then(|file| file.set_len(100 << 20)).expect("a file");
        assert_eq!(find(root, &a), None, "100 MB");
        fs::remove_file(root.join(&config)).expect("rm");
        std::os::unix::fs::symlink("/dev/zero", root.join(&config)).expect("a link");
        assert_eq!(find(root, &a), None, "a device");
        std::fs::remove_file(root.join(&config)).expect("rm");
        std::os::unix::fs::symlink(root.join(&config), root.join(&config)).expect("a link");
        assert_eq!(find(root, &a), None, "a link to itself");
    }
}
