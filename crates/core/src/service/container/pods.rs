// SPDX-License-Identifier: Apache-2.0
//! A list of pods of Kubernetes in JSON, as `kubectl get pods -A -o json` and the kubelet's `/pods` give it.
//!
//! A pod is found by the id of one of its containers, or by its number. containerd knows no labels of pods, so they are found
//! here alone.

use super::described::Container;
use super::group::{Group, is_id};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// By this annotation the pod of a file of the kubelet has the number that its control group shows.
const STATIC: &str = "kubernetes.io/config.hash";
/// What the kubelet gives to the copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods of a machine or a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pods {
    by_container: HashMap<String, Arc<Container>>,
    by_pod: HashMap<String, Arc<Container>>,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    container_statuses: Option<Vec<One>>,
    #[serde(default)]
    init_container_statuses: Option<Vec<One>>,
    #[serde(default)]
    ephemeral_container_statuses: Option<Vec<One>>,
}

#[derive(Deserialize)]
struct One {
    /// `containerd://ID`
    #[serde(default, rename = "containerID")]
    id: Option<String>,
    #[serde(default)]
    image: Option<String>,
}

impl Pods {
    /// Parses a list.
    ///
    /// # Errors
    /// Returns what is wrong, in words of serde_json.
    pub fn parse(json: &[u8]) -> Result<Pods, String> {
        let list: List = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let mut pods = Pods::default();
        list.items.into_iter().for_each(|pod| pods.insert(pod));
        Ok(pods)
    }

    /// Finds a container: by its id, or else by its pod, of which the image is not known.
    pub fn find(&self, group: &Group, pod: Option<&str>) -> Option<&Container> {
        let of_pod = |uid: &str| self.by_pod.get(uid);
        let found = self.by_container.get(&group.id);
        let found = found.or_else(|| group.pod.as_deref().and_then(of_pod)).or_else(|| pod.and_then(of_pod));
        found.map(Arc::as_ref)
    }

    fn insert(&mut self, Pod { metadata, status }: Pod) {
        let mut of_pod =
            Container { namespace: metadata.namespace, pod: metadata.uid.clone(), ..Container::default() };
        of_pod.add_labels(&metadata.labels.unwrap_or_default());
        for One { id, image } in status.unwrap_or_default().all() {
            let id = id.as_deref().and_then(|id| id.rsplit('/').next()).filter(|id| is_id(id));
            if let Some(id) = id {
                let mut container = of_pod.clone();
                container.add_image(image.as_ref());
                self.by_container.insert(id.to_string(), Arc::new(container));
            }
        }
        let mut annotations = metadata.annotations.unwrap_or_default();
        let is_static = annotations.contains_key(MIRROR);
        // The number of another pod is no hash.
        let hash = annotations.remove(STATIC).filter(|hash| is_static && !hash.contains('-'));
        let of_pod = Arc::new(of_pod);
        if let Some(hash) = hash {
            self.by_pod.entry(hash).or_insert_with(|| Arc::clone(&of_pod));
        }
        self.by_pod.extend(metadata.uid.map(|uid| (uid, of_pod)));
    }
}

impl Status {
    fn all(self) -> impl Iterator<Item = One> {
        let lists =
            [self.container_statuses, self.init_container_statuses, self.ephemeral_container_statuses];
        lists.into_iter().flatten().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Pods {
        let id = "a".repeat(64);
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[
            {{"metadata":{{"name":"db-0","namespace":"shop","uid":"u-1","labels":{{"app":"mariadb"}}}},
              "spec":{{"containers":[]}},
              "status":{{"containerStatuses":[{{"containerID":"containerd://{id}","image":"docker.io/library/mariadb:11"}},
                {{"image":"later","state":{{"waiting":{{}}}}}}]}}}},
            {{"metadata":{{"name":"kube-proxy","namespace":"kube-system","uid":"u-2",
              "annotations":{{"kubernetes.io/config.hash":"h2","kubernetes.io/config.mirror":"h2"}}}}}}]}}"#
        );
        Pods::parse(json.as_bytes()).expect("a list")
    }

    fn find(pods: &Pods, id: &str, pod: Option<&str>) -> Option<String> {
        let group = Group { id: id.repeat(64), pod: pod.map(str::to_string) };
        pods.find(&group, None).map(ToString::to_string)
    }

    #[test]
    fn issue_33_7_a_pod_is_found_by_its_containers_and_its_number() {
        let pods = pods();
        let whole = "image docker.io/library/mariadb:11, namespace shop, label app=mariadb";
        assert_eq!(find(&pods, "a", None).as_deref(), Some(whole));
        assert_eq!(find(&pods, "b", Some("u-1")).as_deref(), Some("namespace shop, label app=mariadb"));
        assert_eq!(find(&pods, "b", Some("h2")).as_deref(), Some("namespace kube-system"));
        assert_eq!([find(&pods, "b", None), find(&pods, "b", Some("u-3"))], [None, None]);
        let group = Group { id: "b".repeat(64), pod: None };
        assert!(pods.find(&group, Some("u-2")).is_some(), "by the number that the runtime knows");
    }

    #[test]
    fn issue_33_7_a_pod_cannot_have_the_number_of_another() {
        let pod = |namespace: &str, uid: &str, hash: &str| {
            format!(
                r#"{{"metadata":{{"namespace":"{namespace}","uid":"{uid}","annotations":{{"kubernetes.io/config.hash":"{hash}",
                "kubernetes.io/config.mirror":"{hash}"}}}}}}"#
            )
        };
        let pods = [pod("kube-system", "u-2", "h2"), pod("evil", "u-3", "u-2"), pod("evil", "u-4", "h2")];
        let pods = Pods::parse(format!("{{\"items\":[{}]}}", pods.join(",")).as_bytes()).expect("a list");
        for number in ["u-2", "h2"] {
            assert_eq!(find(&pods, "b", Some(number)).as_deref(), Some("namespace kube-system"), "{number}");
        }
    }

    #[test]
    fn issue_33_7_what_is_no_list_of_pods() {
        for bad in ["", "[]", "{}", "{\"items\":7}", "{\"items\":[{}]}", &"[".repeat(1 << 20)] {
            assert!(Pods::parse(bad.as_bytes()).is_err(), "{}", &bad[..bad.len().min(40)]);
        }
        assert_eq!(Pods::parse(b"{\"items\":[]}"), Ok(Pods::default()));
    }
}
