// SPDX-License-Identifier: Apache-2.0
//! `config.json` of a container, which the runtime is started with (the OCI's runtime specification). What the managers of
//! containers know stands in its annotations.

use super::described::Container;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The annotations of containerd (`internal/cri/annotations/annotations.go`), CRI-O (`pkg/annotations`) and nerdctl.
const IMAGES: [&str; 4] = [
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri-o.ImageName",
    "io.kubernetes.cri-o.Image",
    "org.opencontainers.image.ref.name",
];
const NAMESPACES: [&str; 2] = ["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"];
const PODS: [&str; 2] = ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"];
/// Labels as the text of a JSON object.
const LABELS: [&str; 2] = ["io.kubernetes.cri-o.Labels", "nerdctl/labels"];

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Reads the file; `None` if it is none. Annotations count as labels: `podman run --annotation` makes them.
pub fn parse(json: &[u8]) -> Option<Container> {
    let annotations = serde_json::from_slice::<Config>(json).ok()?.annotations.unwrap_or_default();
    let first = |keys: &[&str]| keys.iter().find_map(|key| annotations.get(*key)).cloned();
    let mut container =
        Container { namespace: first(&NAMESPACES), pod: first(&PODS), ..Container::default() };
    IMAGES.iter().for_each(|key| container.add_image(annotations.get(*key)));
    container.add_labels(&annotations);
    for labels in LABELS.iter().filter_map(|key| annotations.get(*key)) {
        container.add_labels(&serde_json::from_str(labels).unwrap_or_default());
    }
    Some(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_3_annotations_of_containerd() {
        let container = parse(
            br#"{"ociVersion":"1.1.0","process":{"args":["/x"]},"annotations":{
            "io.kubernetes.cri.container-name":"db","io.kubernetes.cri.image-name":"docker.io/library/mariadb:11",
            "io.kubernetes.cri.sandbox-namespace":"shop","io.kubernetes.cri.sandbox-uid":"1c0f"}}"#,
        );
        let container = container.expect("a container");
        assert!(container.images.contains("docker.io/library/mariadb:11"));
        assert_eq!((container.namespace.as_deref(), container.pod.as_deref()), (Some("shop"), Some("1c0f")));
        assert!(container.labels.contains("io.kubernetes.cri.container-name=db"));
    }

    #[test]
    fn issue_33_3_annotations_of_cri_o_and_podman() {
        let container = parse(
            br#"{"annotations":{"io.kubernetes.cri-o.ImageName":"quay.io/x/y:2","io.kubernetes.pod.namespace":"a",
            "io.kubernetes.cri-o.Labels":"{\"app\":\"db\",\"io.kubernetes.pod.uid\":\"7\"}"}}"#,
        );
        let container = container.expect("a container");
        assert!(container.labels.contains("app=db") && container.images.contains("quay.io/x/y:2"));
        let podman = parse(br#"{"annotations":{"io.container.manager":"libpod","app":"db"}}"#).expect("one");
        assert!(podman.labels.contains("app=db") && podman.images.is_empty());
    }

    #[test]
    fn issue_33_3_what_is_no_configuration() {
        let deep = "[".repeat(1 << 20);
        let in_annotations = format!("{{\"annotations\":{{\"a\":{deep}");
        for bad in [
            "",
            "{",
            "7",
            "\u{0}",
            "{\"annotations\":7}",
            "{\"annotations\":{\"a\":7}}",
            &deep,
            &in_annotations,
        ] {
            assert_eq!(parse(bad.as_bytes()), None);
        }
        assert_eq!(parse(b"\xff\xfe"), None);
        for empty in ["{}", "{\"annotations\":null}"] {
            assert!(parse(empty.as_bytes()).is_some_and(|container| container.is_unknown()));
        }
        let bad_labels = parse(br#"{"annotations":{"io.kubernetes.cri-o.Labels":"[["}}"#).expect("one");
        assert_eq!(bad_labels.labels.len(), 1);
    }
}
