// SPDX-License-Identifier: Apache-2.0
//! A file that is complete before it has a name.
//!
//! Where the file system can, the file has no name at all while it is written (open(2), `O_TMPFILE`): nothing is left
//! of it if the process is killed. Elsewhere it has a name of its own, and is removed when it is dropped. It has one for a
//! moment too if it replaces another file, as link(2) replaces none. Signals that would end the process, and leave the file there,
//! are held while it has such a name.

pub use crate::io::open::own_path;

use crate::held_signals::HeldSignals;
use crate::io::entry::Entry;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many names are tried.
const NAMES: u32 = 100;

/// A new file in the directory of another one. It is removed when it is dropped.
#[derive(Debug)]
pub struct Temporary {
    place: Entry,
    file: File,
    /// The name that it has until it gets its last one. The signals have their effect when that name is removed.
    named: Option<(Entry, HeldSignals)>,
}

impl Temporary {
    /// Makes it in the directory of `place`, with this mode, open for reading and writing.
    ///
    /// # Errors
    /// open(2)
    pub fn beside(place: &Entry, mode: u32) -> io::Result<Temporary> {
        let nameless = place.open_directory(OFlag::O_TMPFILE | OFlag::O_RDWR, Mode::from_bits_truncate(mode));
        // It gets its name by a link of procfs, which need not be mounted.
        let nameless = nameless.ok().filter(|file| own_path(file).exists());
        let (file, named) = match nameless {
            Some(file) => (file, None),
            // Not each file system has files without a name (EOPNOTSUPP, EISDIR). Another reason, such as a directory
            // that may not be written to, prevents this attempt too.
            None => {
                let held = HeldSignals::hold()?;
                let (named, file) = with_new_name(place, |entry| entry.create(mode))?;
                (file, Some((named, held)))
            }
        };
        Ok(Temporary { place: place.clone(), file, named })
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it a name, if it has none yet, and returns its path.
    ///
    /// # Errors
    /// linkat(2)
    pub fn path(&mut self) -> io::Result<PathBuf> {
        self.name().map(|entry| entry.path())
    }

    fn name(&mut self) -> io::Result<Entry> {
        if let Some((named, _)) = &self.named {
            return Ok(named.clone());
        }
        let held = HeldSignals::hold()?;
        let (named, ()) = with_new_name(&self.place, |entry| entry.link(&self.file))?;
        self.named = Some((named.clone(), held));
        Ok(named)
    }

    /// Returns the signals that are held while it has a name of its own.
    pub fn held(&self) -> Option<&HeldSignals> {
        self.named.as_ref().map(|(_, held)| held)
    }

    /// Fails if a held signal has come. It is for the time between long steps.
    ///
    /// # Errors
    /// `EINTR`
    pub fn check(&self) -> io::Result<()> {
        match self.held().and_then(HeldSignals::came) {
            Some(signal) => Err(io::Error::new(io::ErrorKind::Interrupted, format!("{signal} has come"))),
            None => Ok(()),
        }
    }

    /// Opens the file again, for reading only: the kernel executes no file that is open for writing.
    ///
    /// # Errors
    /// open(2)
    pub fn close_for_writing(&mut self) -> io::Result<()> {
        self.file = File::open(own_path(&self.file))?;
        Ok(())
    }

    /// Gives it the name `place`: others see the old file or the whole new one.
    ///
    /// # Errors
    /// fsync(2), linkat(2), renameat(2), or that another file has its name.
    pub fn publish(mut self, place: &Entry) -> io::Result<()> {
        self.file.sync_all()?;
        if self.named.is_none() {
            match place.link(&self.file) {
                Ok(()) => return place.sync_directory(),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        self.publish_by(place, |named| named.rename(place))
    }

    /// Gives it the name `place` if that is still the name of `old`.
    ///
    /// # Errors
    /// As [`Temporary::publish`]; `ESTALE` if another file has taken the name, which that file then keeps.
    pub fn publish_for(&mut self, old: &Metadata, place: &Entry) -> io::Result<()> {
        self.file.sync_all()?;
        self.publish_by(place, |named| named.take_place_of(old, place))
    }

    /// Renames it, for which it needs a name first.
    fn publish_by(&mut self, place: &Entry, rename: impl FnOnce(&Entry) -> io::Result<()>) -> io::Result<()> {
        let named = self.name()?;
        if !named.is(&self.file.metadata()?) {
            return Err(Errno::ESTALE.into());
        }
        rename(&named)?;
        self.named = None;
        place.sync_directory()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some((named, _)) = &self.named
            && self.file.metadata().is_ok_and(|meta| named.is(&meta))
        {
            // Nothing more can be done if it cannot be removed.
            let _ = named.remove();
        }
    }
}

/// Calls `make` with names beside `place` until one is free.
fn with_new_name<T>(place: &Entry, mut make: impl FnMut(&Entry) -> io::Result<T>) -> io::Result<(Entry, T)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..NAMES {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let mut name = OsString::from(".");
        name.push(place.name());
        name.push(format!(".hugelift-{}-{now}", std::process::id()));
        let entry = place.sibling(name);
        match make(&entry) {
            Ok(made) => return Ok((entry, made)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use std::fs;
    use std::io::Write as _;
    use std::path::Path;

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn nothing_is_seen_of_it_before_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = Entry::find(&folder.path().join("out")).unwrap();
        let new = Temporary::beside(&place, 0o644).unwrap();
        if new.named.is_some() {
            return println!("SKIP: the file system of temporary files has no files without a name");
        }
        new.file().write_all(b"whole").unwrap();
        assert_eq!(names(folder.path()), Vec::<OsString>::new());
        let events = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        events.add_watch(folder.path(), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVE).unwrap();
        new.publish(&place).unwrap();
        // It had no other name even for a moment, in which the process could have been killed.
        let events: Vec<_> =
            events.read_events().unwrap().into_iter().filter_map(|event| event.name).collect();
        assert_eq!((events, names(folder.path())), (vec!["out".into()], vec!["out".into()]));
        assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"whole");
    }

    #[test]
    fn a_named_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let place = Entry::find(&folder.path().join("out")).unwrap();
        let mut new = Temporary::beside(&place, 0o644).unwrap();
        new.file().write_all(b"bytes").unwrap();
        new.close_for_writing().unwrap();
        assert_eq!(fs::read(new.path().unwrap()).unwrap(), b"bytes");
        assert_eq!(new.path().unwrap(), new.path().unwrap());
        assert!(new.file().write_all(b"more").is_err());
        assert_eq!(names(folder.path()).len(), 1);
        drop(new);
        assert_eq!(names(folder.path()), Vec::<OsString>::new());
    }

    #[test]
    fn signals_are_held_while_it_has_a_name() {
        use nix::sys::signal::{SigSet, Signal, raise};
        let folder = tempfile::tempdir().unwrap();
        let place = Entry::find(&folder.path().join("out")).unwrap();
        let is_blocked = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM);
        let mut new = Temporary::beside(&place, 0o644).unwrap();
        assert_eq!(is_blocked(), new.held().is_some());
        new.path().unwrap();
        raise(Signal::SIGTERM).unwrap();
        assert_eq!(new.held().unwrap().came(), Some(Signal::SIGTERM));
        assert!(new.check().unwrap_err().to_string().contains("SIGTERM has come"));
        // It is taken here, as it would end the tests.
        assert_eq!(SigSet::from(Signal::SIGTERM).wait().unwrap(), Signal::SIGTERM);
        drop(new);
        assert!(!is_blocked());
    }

    #[test]
    fn an_old_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "old").unwrap();
        let place = Entry::find(&path).unwrap();
        let new = Temporary::beside(&place, 0o600).unwrap();
        new.file().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        new.publish(&place).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"new".to_vec(), 1));
    }
}
