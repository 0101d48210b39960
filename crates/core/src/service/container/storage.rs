// SPDX-License-Identifier: Apache-2.0
//! The store of Podman and CRI-O: `containers.json` names the image of each container, and the configuration of an image has
//! its labels. The labels of a container of Podman are in its database alone.

use super::described::Container;
use super::group::is_id;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The image of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// The name by which the container was made.
    pub name: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    image: String,
    #[serde(default)]
    metadata: String,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default, rename = "image-name")]
    image_name: Option<String>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    config: Option<Inner>,
}

#[derive(Deserialize)]
struct Inner {
    #[serde(default, rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// Finds the image of a container in `containers.json`; `None` if it is not there.
pub fn image_of(json: &[u8], id: &str) -> Option<Image> {
    let entries: Vec<Entry> = serde_json::from_slice(json).ok()?;
    let entry = entries.into_iter().find(|entry| entry.id == id && is_id(&entry.image))?;
    let metadata = serde_json::from_str::<Metadata>(&entry.metadata).ok();
    Some(Image { id: entry.image, name: metadata.and_then(|metadata| metadata.image_name) })
}

/// Returns the labels in the configuration of an image.
pub fn labels(json: &[u8]) -> Container {
    let mut container = Container::default();
    let config = serde_json::from_slice::<Config>(json).ok().and_then(|config| config.config);
    container.add_labels(&config.and_then(|config| config.labels).unwrap_or_default());
    container
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_3_the_image_of_a_container_of_podman() {
        let (one, image) = ("1".repeat(64), "a".repeat(64));
        let json = format!(
            r#"[{{"id":"x"}},{{"id":"{one}","names":["t"],"image":"{image}",
            "metadata":"{{\"image-name\":\"localhost/db:1\",\"name\":\"t\"}}"}}]"#
        );
        let found = image_of(json.as_bytes(), &one);
        assert_eq!(found, Some(Image { id: image.clone(), name: Some("localhost/db:1".into()) }));
        assert_eq!(image_of(json.as_bytes(), "x"), None, "it has no image");
        assert_eq!(image_of(json.as_bytes(), &image), None);
        let elsewhere = json.replace(&image, "../../etc");
        assert_eq!(image_of(elsewhere.as_bytes(), &one), None);
        let nameless = json.replace("image-name", "other");
        assert_eq!(image_of(nameless.as_bytes(), &one), Some(Image { id: image, name: None }));
    }

    #[test]
    fn issue_33_3_the_labels_of_an_image() {
        let known = labels(br#"{"config":{"Labels":{"app":"db"}},"os":"linux"}"#);
        assert_eq!(known.to_string(), "label app=db");
        for bad in [
            "",
            "{}",
            "[[",
            "{\"config\":null}",
            "{\"config\":{\"Labels\":null}}",
            "{\"config\":{\"Labels\":[]}}",
        ] {
            assert!(labels(bad.as_bytes()).is_unknown(), "{bad}");
        }
    }
}
