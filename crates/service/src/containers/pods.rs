// SPDX-License-Identifier: Apache-2.0
//! The file of pods (`--pods`). It is read again when it has changed. One that cannot be read leaves what was read before.

use super::trusted::read;
use crate::journal::{Level, log};
use hugelift_core::printable::{Escape as _, printable};
use hugelift_core::service::container::pods::Pods;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The bytes of the file at most.
const MOST: u64 = 64 << 20;
/// Between two checks of the file.
const PAUSE: Duration = Duration::from_secs(5);

/// What tells one state of a file from another: device, inode, size, and the time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

/// The file of pods.
#[derive(Debug)]
pub struct PodsFile {
    path: PathBuf,
    pods: Pods,
    /// The state that was tried last, whether it could be read or not.
    tried: Option<Stamp>,
    /// When it is checked again.
    again: Instant,
    /// Why it could not be read last time.
    failed: Option<String>,
}

impl PodsFile {
    /// Names the file, and reads nothing yet.
    pub fn new(path: PathBuf) -> PodsFile {
        PodsFile { path, pods: Pods::default(), tried: None, again: Instant::now(), failed: None }
    }

    /// Checks every few seconds at most whether the file has changed, and reads it if so. Returns whether the file says
    /// something else than before.
    pub fn refresh(&mut self) -> bool {
        if Instant::now() < self.again {
            return false;
        }
        self.again = Instant::now() + PAUSE;
        let stamp = std::fs::metadata(&self.path).ok().map(|meta| stamp(&meta));
        // One that could not be read may be readable now: its mode is not part of the stamp.
        if stamp.is_some() && stamp == self.tried && self.failed.is_none() {
            return false;
        }
        self.tried = stamp;
        match self.read() {
            Ok(pods) => {
                self.failed = None;
                let is_new = pods != self.pods;
                self.pods = pods;
                is_new
            }
            Err(why) => {
                self.complain(why);
                false
            }
        }
    }

    /// Returns the pods that were read last.
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    fn read(&self) -> Result<Pods, String> {
        let bytes = read(&self.path, MOST).map_err(|error| error.to_string())?;
        Pods::parse(&bytes)
    }

    /// Says once why it cannot be read.
    fn complain(&mut self, why: String) {
        if self.failed.as_ref() != Some(&why) {
            log(
                Level::Warning,
                &printable(&format!("cannot read the pods in {}: {why}", self.path.escaped())),
            );
            self.failed = Some(why);
        }
    }
}

fn stamp(meta: &Metadata) -> Stamp {
    (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::service::container::group::Group;
    use std::fs;

    fn list(uid: &str) -> String {
        format!(r#"{{"items":[{{"metadata":{{"namespace":"shop","uid":"{uid}"}}}}]}}"#)
    }

    /// Reads the file, if it has changed, without a pause.
    fn refresh(file: &mut PodsFile) -> bool {
        file.again = Instant::now();
        file.refresh()
    }

    fn knows(file: &PodsFile, pod: &str) -> bool {
        let group = Group { id: "a".repeat(64), pod: Some(pod.to_string()) };
        file.pods().find(&group, None).is_some()
    }

    #[test]
    fn issue_33_7_the_file_of_pods_is_read_again_when_it_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("pods");
        let mut file = PodsFile::new(path.clone());
        assert!(!refresh(&mut file) && file.failed.is_some(), "there is none");
        let put = |text: &str| {
            let new = dir.path().join("new");
            fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).expect("a file");
        };
        put(&list("u-1"));
        assert!(refresh(&mut file) && file.failed.is_none());
        assert!(knows(&file, "u-1"));
        assert!(!refresh(&mut file), "nothing has changed");
        put("{\"items\":[");
        assert!(!refresh(&mut file) && file.failed.is_some());
        assert!(knows(&file, "u-1"), "those of before stay");
        put(&format!("{} ", list("u-1")));
        assert!(!refresh(&mut file) && file.failed.is_none(), "it says the same");
        put(&list("u-2"));
        assert!(refresh(&mut file) && file.failed.is_none());
        assert!(knows(&file, "u-2") && !knows(&file, "u-1"));
        fs::File::create(dir.path().join("new")).and_then(|file| file.set_len(100 << 20)).expect("a file");
        fs::rename(dir.path().join("new"), &path).expect("mv");
        assert!(!refresh(&mut file) && file.failed.as_ref().is_some_and(|why| why.contains("more than")));
    }
}
