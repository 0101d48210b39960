// SPDX-License-Identifier: Apache-2.0
//! `config.json` of a container, which the runtime is started with (the OCI's runtime specification). What the managers of
//! containers know stands in its annotations.

use super::described::Container;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Who has written the file. Each has its own annotations, and hands on what the owner of a pod writes: what another one calls
/// the image would be the owner's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// containerd (`internal/cri/annotations/annotations.go`) and nerdctl.
    Containerd,
    /// CRI-O (`pkg/annotations`) and Podman.
    CriO,
}

/// Labels as the text of a JSON object, which CRI-O and nerdctl write.
const CRI_O_LABELS: &str = "io.kubernetes.cri-o.Labels";
const NERDCTL_LABELS: &str = "nerdctl/labels";

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Reads the file; `None` if it is none. Annotations count as labels: `podman run --annotation` makes them.
pub fn parse(json: &[u8], writer: Writer) -> Option<Container> {
    let annotations = serde_json::from_slice::<Config>(json).ok()?.annotations.unwrap_or_default();
    let get = |key: &str| annotations.get(key);
    let in_json = |key| get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut container = Container::default();
    container.add_labels(&annotations);
    let labels: BTreeMap<String, String> = match writer {
        Writer::Containerd => {
            container.namespace = get("io.kubernetes.cri.sandbox-namespace").cloned();
            container.pod = get("io.kubernetes.cri.sandbox-uid").cloned();
            container.add_image(get("io.kubernetes.cri.image-name"));
            in_json(NERDCTL_LABELS)
        }
        Writer::CriO => {
            // The kubelet gives these, and the owner of a pod cannot give labels of such names.
            let labels: BTreeMap<String, String> = in_json(CRI_O_LABELS);
            container.namespace = labels.get("io.kubernetes.pod.namespace").cloned();
            container.pod = labels.get("io.kubernetes.pod.uid").cloned();
            for key in ["io.kubernetes.cri-o.ImageName", "io.kubernetes.cri-o.Image"] {
                container.add_image(get(key));
            }
            labels
        }
    };
    container.add_labels(&labels);
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
            Writer::Containerd,
        );
        let container = container.expect("a container");
        assert!(container.images.contains("docker.io/library/mariadb:11"));
        assert_eq!((container.namespace.as_deref(), container.pod.as_deref()), (Some("shop"), Some("1c0f")));
        assert!(container.labels.contains("io.kubernetes.cri.container-name=db"));
    }

    #[test]
    fn issue_33_3_annotations_of_cri_o_and_podman() {
        let container = parse(
            br#"{"annotations":{"io.kubernetes.cri-o.ImageName":"quay.io/x/y:2",
            "io.kubernetes.cri-o.Labels":"{\"app\":\"db\",\"io.kubernetes.pod.uid\":\"7\",\"io.kubernetes.pod.namespace\":\"a\"}"}}"#,
            Writer::CriO,
        );
        let container = container.expect("a container");
        assert!(container.labels.contains("app=db") && container.images.contains("quay.io/x/y:2"));
        assert_eq!((container.namespace.as_deref(), container.pod.as_deref()), (Some("a"), Some("7")));
        let podman = br#"{"annotations":{"io.container.manager":"libpod","app":"db"}}"#;
        let podman = parse(podman, Writer::CriO).expect("one");
        assert!(podman.labels.contains("app=db") && podman.images.is_empty());
    }

    #[test]
    fn issue_33_3_the_owner_of_a_pod_cannot_speak_for_the_runtime() {
        let forged = br#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"shop","io.kubernetes.cri.sandbox-uid":"1",
            "io.kubernetes.cri.image-name":"mariadb:11","org.opencontainers.image.ref.name":"mariadb:11",
            "io.kubernetes.pod.namespace":"shop"}}"#;
        let container = parse(forged, Writer::CriO).expect("a container");
        assert_eq!((container.namespace, container.pod, container.images.len()), (None, None, 0));
        let forged = br#"{"annotations":{"io.kubernetes.cri-o.ImageName":"mariadb:11",
            "io.kubernetes.cri-o.Labels":"{\"io.kubernetes.pod.namespace\":\"shop\"}"}}"#;
        let container = parse(forged, Writer::Containerd).expect("a container");
        assert_eq!((container.namespace, container.pod, container.images.len()), (None, None, 0));
    }

    #[test]
    fn issue_33_3_what_is_no_configuration() {
        let parse = |json: &[u8]| super::parse(json, Writer::CriO);
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
