// SPDX-License-Identifier: Apache-2.0
//! Watches folders for files that are replaced, written or removed (inotify(7)).
//!
//! The worker thread sets the watches, which follows paths and may take long. The daemon's loop
//! reads the events.

use super::wanted::Names;
use hugelift_core::printable::Escape;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// How many times events are read in one turn. A process that changes a watched folder all the time
/// makes events faster than they can be read.
const MAX_READS: usize = 16;

/// The names that matter for each watch.
pub type Watched = HashMap<WatchDescriptor, Names>;

/// The folders that are watched.
pub struct Folders {
    inotify: Arc<Inotify>,
    folders: BTreeMap<PathBuf, WatchDescriptor>,
}

/// The events in watched folders.
pub struct Changes {
    inotify: Arc<Inotify>,
    watched: Watched,
}

/// The result of setting the watches.
pub struct Set {
    /// Whether a folder was not watched before.
    pub new: bool,
    /// For [`Changes::set`].
    pub watched: Watched,
    /// Folders that cannot be watched, a line each: only the regular rounds see changes in them.
    pub failed: Vec<String>,
}

/// Starts without a watched folder.
///
/// # Errors
/// inotify_init(2) fails.
pub fn start() -> Result<(Folders, Changes), String> {
    let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
    let inotify = Inotify::init(flags).map_err(|e| {
        format!("cannot watch for changes: inotify_init: {e}; see /proc/sys/fs/inotify/max_user_instances")
    })?;
    let inotify = Arc::new(inotify);
    let changes = Changes { inotify: inotify.clone(), watched: Watched::new() };
    Ok((Folders { inotify, folders: BTreeMap::new() }, changes))
}

impl Folders {
    /// Watches these folders and no others.
    pub fn set(&mut self, folders: &BTreeMap<PathBuf, Names>) -> Set {
        let gone: Vec<PathBuf> = self.folders.keys().filter(|f| !folders.contains_key(*f)).cloned().collect();
        for folder in gone {
            if let Some(watch) = self.folders.remove(&folder) {
                // It fails for a folder that was removed: the kernel has ended its watch.
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
        let mut set = Set { new: false, watched: Watched::new(), failed: Vec::new() };
        for (folder, names) in folders {
            // A folder that is watched gets the same descriptor again; a new folder of the same name
            // gets another one.
            match self.inotify.add_watch(folder, what) {
                Ok(watch) => {
                    set.new |= self.folders.insert(folder.clone(), watch) != Some(watch);
                    set.watched.insert(watch, names.clone());
                }
                Err(error) => {
                    self.folders.remove(folder);
                    set.failed.push(format!("cannot watch {}: {error}", folder.escaped()));
                }
            }
        }
        set
    }
}

impl Changes {
    /// Sets the watches whose events matter.
    pub fn set(&mut self, watched: Watched) {
        self.watched = watched;
    }

    /// Reads some events; returns whether one of them matters. The others stay in the kernel's queue,
    /// which is bounded: an overflow is an event too, and matters.
    pub fn take(&self) -> bool {
        let mut matters = false;
        for _ in 0..MAX_READS {
            let Ok(events) = self.inotify.read_events() else { break };
            for event in events {
                let lost = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                matters |= lost
                    || match (self.watched.get(&event.wd), &event.name) {
                        (Some(names), Some(name)) => names.hold(name),
                        // An event of the folder itself.
                        (Some(_), None) => true,
                        // An event of a watch that has ended.
                        (None, _) => false,
                    };
            }
        }
        matters
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
