// SPDX-License-Identifier: Apache-2.0
//! `config.v2.json` of a container of Docker. Its labels are those of the container and of its image.

use super::described::Container;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The labels by which the kubelet names the pod.
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD: &str = "io.kubernetes.pod.uid";

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "Config")]
    config: Inner,
}

#[derive(Deserialize)]
struct Inner {
    #[serde(default, rename = "Image")]
    image: Option<String>,
    #[serde(default, rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// Reads the file; `None` if it is none.
pub fn parse(json: &[u8]) -> Option<Container> {
    let config = serde_json::from_slice::<Config>(json).ok()?.config;
    let labels = config.labels.unwrap_or_default();
    let of = |key: &str| labels.get(key).cloned();
    let mut container = Container { namespace: of(NAMESPACE), pod: of(POD), ..Container::default() };
    container.add_image(config.image.as_ref());
    container.add_labels(&labels);
    Some(container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_3_a_container_of_docker() {
        let json = br#"{"State":{"Running":true},"ID":"7","Image":"sha256:1",
            "Config":{"Hostname":"x","Image":"mariadb:11","Labels":{"app":"db"}}}"#;
        assert_eq!(parse(json).expect("one").to_string(), "image mariadb:11, label app=db");
        let null = br#"{"Config":{"Image":"mariadb:11","Labels":null}}"#;
        assert_eq!(parse(null).expect("one").to_string(), "image mariadb:11");
        let kubelet =
            br#"{"Config":{"Labels":{"io.kubernetes.pod.namespace":"shop","io.kubernetes.pod.uid":"7"}}}"#;
        assert_eq!(parse(kubelet).expect("one").namespace.as_deref(), Some("shop"));
        for bad in [&b""[..], b"{}", b"[]", b"{\"Config\":{\"Labels\":7}}", b"\xff"] {
            assert_eq!(parse(bad), None);
        }
    }
}
