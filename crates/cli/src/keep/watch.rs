// SPDX-License-Identifier: Apache-2.0
//! Watches folders for files that are replaced, written or removed (inotify(7)).

use super::wanted::Names;
use hugelift_core::printable::Escape;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// The folders that are watched.
pub struct Watch {
    inotify: Inotify,
    folders: BTreeMap<PathBuf, WatchDescriptor>,
    names: HashMap<WatchDescriptor, Names>,
}

impl Watch {
    /// Nothing is watched yet.
    ///
    /// # Errors
    /// errno(3) of inotify_init(2), in words.
    pub fn new() -> Result<Watch, String> {
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let inotify = Inotify::init(flags).map_err(|e| {
            format!(
                "cannot watch for changes: inotify_init: {e}; see /proc/sys/fs/inotify/max_user_instances"
            )
        })?;
        Ok(Watch { inotify, folders: BTreeMap::new(), names: HashMap::new() })
    }

    /// Watches these folders and no others. Returns whether one of them was not watched before,
    /// and those that cannot be watched, which then are only looked at from time to time.
    pub fn set(&mut self, folders: &BTreeMap<PathBuf, Names>) -> (bool, Vec<String>) {
        let gone: Vec<PathBuf> = self.folders.keys().filter(|f| !folders.contains_key(*f)).cloned().collect();
        for folder in gone {
            if let Some(watch) = self.folders.remove(&folder) {
                self.names.remove(&watch);
                // A folder that was removed has taken its watch along.
                let _ = self.inotify.rm_watch(watch);
            }
        }
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let (mut new, mut failed) = (false, Vec::new());
        self.names.clear();
        for (folder, names) in folders {
            // Adding a folder again gives the watch that it has; one made anew in its place
            // gets another.
            match self.inotify.add_watch(folder, what) {
                Ok(watch) => {
                    new |= self.folders.insert(folder.clone(), watch) != Some(watch);
                    self.names.insert(watch, names.clone());
                }
                Err(error) => {
                    self.folders.remove(folder);
                    failed.push(format!("cannot watch {}: {error}", folder.escaped()));
                }
            }
        }
        (new, failed)
    }

    /// Takes what has happened; whether it matters.
    pub fn take(&self) -> bool {
        let mut matters = false;
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                let lost = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                matters |= lost
                    || match (self.names.get(&event.wd), &event.name) {
                        (Some(names), Some(name)) => names.hold(name),
                        // The folder itself.
                        (Some(_), None) => true,
                        // A watch that has ended.
                        (None, _) => false,
                    };
            }
        }
        matters
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
