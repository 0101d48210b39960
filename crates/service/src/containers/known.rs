// SPDX-License-Identifier: Apache-2.0
//! The containers that are known, by their ids. What a runtime says of a container does not change while it runs, so it is
//! read once.

use super::pods::PodsFile;
use super::runtimes;
use hugelift_core::service::container::described::Container;
use hugelift_core::service::container::group::container;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most containers that are remembered.
const MOST: usize = 4096;
/// How long it is believed that no runtime knows a container: its files may come later.
const UNKNOWN: Duration = Duration::from_secs(10);

/// The containers that are known.
#[derive(Debug)]
pub struct Containers {
    root: PathBuf,
    pods: Option<PodsFile>,
    /// The description of each container by a runtime. If no runtime knows it, the time until which that is believed.
    known: BTreeMap<String, Result<Arc<Container>, Instant>>,
}

impl Containers {
    /// Knows none yet, and reads the file of pods, of which `pods` is the path.
    pub fn new(pods: Option<PathBuf>) -> Containers {
        let mut containers =
            Containers { root: "/".into(), pods: pods.map(PodsFile::new), known: BTreeMap::new() };
        containers.refresh();
        containers
    }

    /// Checks every few seconds at most whether the file of pods has changed, and reads it again if so. Returns whether the
    /// file says something else than before.
    pub fn refresh(&mut self) -> bool {
        self.pods.as_mut().is_some_and(PodsFile::refresh)
    }

    /// Returns the container of a process by its control group; `None` if it is in none.
    pub fn of(&mut self, cgroup: &str) -> Option<Container> {
        let group = container(cgroup)?;
        let known = self.by_runtime(&group.id);
        let mut all = known.map(|known| Container::clone(&known)).unwrap_or_default();
        if let Some(file) = &self.pods {
            let pod = all.pod.clone();
            file.pods().find(&group, pod.as_deref()).into_iter().for_each(|of_pod| all.add(of_pod));
        }
        all.pod = all.pod.or(group.pod);
        Some(all)
    }

    fn by_runtime(&mut self, id: &str) -> Option<Arc<Container>> {
        match self.known.get(id) {
            Some(Ok(known)) => return Some(Arc::clone(known)),
            Some(Err(until)) if Instant::now() < *until => return None,
            _ => {}
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let found = runtimes::find(&self.root, id).map(Arc::new);
        let known = found.clone().ok_or_else(|| Instant::now() + UNKNOWN);
        self.known.insert(id.to_string(), known);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn issue_33_3_a_container_is_read_once_and_its_pod_is_added() {
        let dir = tempfile::tempdir().expect("a folder");
        let id = "a".repeat(64);
        let folder = dir.path().join("run/containerd/io.containerd.runtime.v2.task/k8s.io").join(&id);
        fs::create_dir_all(&folder).expect("folders");
        let annotations = r#"{"annotations":{"io.kubernetes.cri.image-name":"db:1"}}"#;
        fs::write(folder.join("config.json"), annotations).expect("write");
        let pods = dir.path().join("pods");
        let uid = "1c0fe1f4-65d4-4a3c-8b38-1f0b4a3d9e11";
        let list = format!(
            r#"{{"items":[{{"metadata":{{"namespace":"shop","uid":"{uid}","labels":{{"app":"db"}}}}}}]}}"#
        );
        fs::write(&pods, list).expect("write");
        let mut containers = Containers { root: dir.path().into(), ..Containers::new(Some(pods)) };
        let group = format!("/kubepods/burstable/pod{uid}/{id}");
        for _ in 0..2 {
            let known = containers.of(&group).expect("a container");
            assert_eq!((known.namespace.as_deref(), known.pod.as_deref()), (Some("shop"), Some(uid)));
            assert!(known.images.contains("db:1") && known.labels.contains("app=db"));
            // What was read once is remembered.
            let _ = fs::remove_dir_all(&folder);
        }
        let other = containers.of(&format!("/docker/{}", "b".repeat(64))).expect("a container");
        assert!(other.images.is_empty() && other.labels.is_empty() && other.namespace.is_none());
        assert_eq!(containers.of("/system.slice/x.service"), None);
        assert_eq!(containers.known.len(), 2);
    }
}
