// SPDX-License-Identifier: Apache-2.0
//! What is known about a container.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The labels of a container that are known at most.
const MOST_LABELS: usize = 256;
/// The longest label, in bytes. Those of Kubernetes have 381 at most.
const LONGEST_LABEL: usize = 512;

/// What is known about a container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Container {
    /// The names of its image. The runtime and Kubernetes may use different ones.
    pub images: BTreeSet<String>,
    /// The namespace of its pod in Kubernetes.
    pub namespace: Option<String>,
    /// The number of its pod in Kubernetes (`metadata.uid`).
    pub pod: Option<String>,
    /// Its labels, each as `key=value`.
    pub labels: BTreeSet<String>,
}

impl Container {
    /// Adds the name of its image, unless it is empty.
    pub fn add_image(&mut self, name: Option<&String>) {
        self.images.extend(name.filter(|name| !name.is_empty()).cloned());
    }

    /// Adds labels. Long ones are left out, and so are more than a rule can ask for: images and the owners of pods choose
    /// how many there are.
    pub fn add_labels(&mut self, labels: &BTreeMap<String, String>) {
        let texts = labels.iter().map(|(key, value)| format!("{key}={value}"));
        let room = MOST_LABELS.saturating_sub(self.labels.len());
        self.labels.extend(texts.filter(|text| text.len() <= LONGEST_LABEL).take(room));
    }

    /// Adds what somebody else knows about it. What is known already of its pod stays.
    pub fn add(&mut self, other: &Container) {
        self.images.extend(other.images.iter().cloned());
        self.labels.extend(other.labels.iter().cloned());
        self.namespace = self.namespace.take().or_else(|| other.namespace.clone());
        self.pod = self.pod.take().or_else(|| other.pod.clone());
    }

    /// Returns whether nothing is known that a rule can ask for.
    #[cfg(test)]
    pub(crate) fn is_unknown(&self) -> bool {
        self.images.is_empty() && self.labels.is_empty() && self.namespace.is_none()
    }
}

/// Shows it as the conditions of a rule, such as `image mariadb:11, namespace shop, label app=db`.
impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let images = self.images.iter().map(|image| ("image", image));
        let namespace = self.namespace.iter().map(|namespace| ("namespace", namespace));
        let labels = self.labels.iter().map(|label| ("label", label));
        for (at, (what, value)) in images.chain(namespace).chain(labels).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{what} {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_what_two_sources_know_of_a_container_is_put_together() {
        let mut one = Container { namespace: Some("a".into()), ..Container::default() };
        one.add_image(Some(&"x:1".to_string()));
        one.add_image(Some(&String::new()));
        let mut two = Container { namespace: Some("b".into()), pod: Some("7".into()), ..one.clone() };
        two.add_labels(&BTreeMap::from([("k".to_string(), "v".to_string())]));
        one.add(&two);
        assert_eq!(one.to_string(), "image x:1, namespace a, label k=v");
        assert_eq!(one.pod.as_deref(), Some("7"));
        assert!(!one.is_unknown() && Container { pod: one.pod, ..Container::default() }.is_unknown());
    }
}
