// SPDX-License-Identifier: Apache-2.0
//! Notes: what past runs touched of an object, and how long a program lived. Each is a file in a directory
//! of the calling user that no other user can read.
//!
//! They decide what is copied, never what a copy holds: a wrong note only costs time.

use super::admin::time;
use super::place::{IfAbsent, LOCK, NEW, Place, notes_beside, open_plain, own_path, stat_at};
use super::source::{Source, identity};
use super::{State, StoreError};
use hugelift_core::note::{MAX_BYTES, Note, Touched};
use hugelift_core::record::{Identity, is_record, record_name};
use hugelift_core::snapshot::Object;
use nix::sys::stat::Mode;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most notes that are kept: the oldest beyond that are removed.
const MOST: usize = 256;
/// The age at which a note is removed.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long to wait for the lock. A writer holds it for a fraction of a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// An open directory of notes.
#[derive(Debug)]
pub struct Notes {
    place: Place,
}

/// A note, as it is now.
#[derive(Debug)]
pub struct Noted {
    /// Its content.
    pub note: Note,
    /// When it was last written.
    pub written: SystemTime,
    /// Whether it still describes the file that is there now.
    pub state: State,
    name: String,
}

impl Notes {
    /// Opens the calling user's directory; with [`IfAbsent::Make`] it is made.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn open(if_absent: IfAbsent) -> Result<Notes, StoreError> {
        Notes::at(&notes_beside(&own_path()?), if_absent)
    }

    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn at(path: &Path, if_absent: IfAbsent) -> Result<Notes, StoreError> {
        Ok(Notes { place: open_plain(path, if_absent)? })
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns the descriptor, which must stay open.
    pub fn descriptor(&self) -> i32 {
        self.place.dir.as_raw_fd()
    }

    /// Returns the note of this file, if there is one and the file is unchanged.
    pub fn of(&self, file: &Identity) -> Option<Note> {
        self.read(&record_name(file.device, file.inode)).filter(|note| note.source == *file)
    }

    fn read(&self, name: &str) -> Option<Note> {
        let (json, _) = self.place.read(name, MAX_BYTES)?;
        Note::parse(&json).inspect_err(|error| tracing::debug!(%name, %error, "a note")).ok()
    }

    /// Adds to the note of this file, or makes it: a run that took `life` of CPU time, and what a run touched of
    /// this object.
    ///
    /// # Errors
    /// Another process keeps the lock, or the note cannot be written.
    pub fn add(
        &self,
        path: &Path,
        file: &Identity,
        life: Option<Duration>,
        touched: Option<&Touched>,
    ) -> Result<(), StoreError> {
        let _lock = self.place.lock(PATIENCE)?;
        let known = self.of(file);
        if known.is_none() {
            self.make_room()?;
        }
        let mut note = known.unwrap_or_else(|| Note::new(path.into(), *file));
        note.add(life, touched);
        let json =
            note.to_json().map_err(|e| StoreError::here_io("write a note", std::io::Error::other(e)))?;
        let name = record_name(file.device, file.inode);
        self.place.replace(&name, &json, Mode::S_IRUSR | Mode::S_IWUSR)
    }

    fn make_room(&self) -> Result<(), StoreError> {
        let mut names: Vec<String> = self.place.names()?.into_iter().filter(|n| is_record(n)).collect();
        if names.len() < MOST {
            return Ok(());
        }
        names.sort_by_key(|name| stat_at(&self.place.dir, name).map_or(0, |stat| stat.st_mtime));
        names.iter().take(names.len() + 1 - MOST).try_for_each(|name| self.place.remove(name))
    }

    /// Returns all notes, the one written last first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(&self) -> Result<Vec<Noted>, StoreError> {
        let noted = |name: String| {
            let note = self.read(&name)?;
            let stat = stat_at(&self.place.dir, &name).ok()?;
            let state = match std::fs::metadata(&note.path) {
                Err(_) => State::Gone,
                Ok(meta) if identity(&meta) != note.source => State::Changed,
                Ok(_) => State::Good,
            };
            Some(Noted { note, written: time((stat.st_mtime, stat.st_mtime_nsec)), state, name })
        };
        let names = self.place.names()?.into_iter().filter(|n| is_record(n));
        let mut all: Vec<Noted> = names.filter_map(noted).collect();
        all.sort_by(|a, b| b.written.cmp(&a.written).then_with(|| a.note.path.cmp(&b.note.path)));
        Ok(all)
    }

    /// Removes the notes of changed files, those that cannot be read, and those that are a month old; returns how
    /// many.
    ///
    /// # Errors
    /// Another process keeps the lock, or a file cannot be removed.
    pub fn gc(&self) -> Result<usize, StoreError> {
        let is_young = |noted: &Noted| noted.written.elapsed().is_ok_and(|age| age < FORGOTTEN);
        self.keep(|noted| noted.state == State::Good && is_young(noted))
    }

    /// Removes the notes of the objects for which `wanted` returns true; returns how many.
    ///
    /// # Errors
    /// See [`Notes::gc`].
    pub fn drop_objects(&self, wanted: impl Fn(&Path) -> bool) -> Result<usize, StoreError> {
        self.keep(|noted| !wanted(&noted.note.path))
    }

    /// Removes all notes, and the directory; returns how many notes.
    ///
    /// # Errors
    /// See [`Notes::gc`]; also if there are other files in it.
    pub fn drop_all(&self) -> Result<usize, StoreError> {
        let dropped = self.keep(|_| false)?;
        self.place.remove(LOCK)?;
        self.place.remove_dir()?;
        Ok(dropped)
    }

    fn keep(&self, wanted: impl Fn(&Noted) -> bool) -> Result<usize, StoreError> {
        let _lock = self.place.lock(PATIENCE)?;
        let kept: Vec<String> = self.all()?.into_iter().filter(wanted).map(|noted| noted.name).collect();
        let is_ours = |name: &String| is_record(name.strip_suffix(NEW).unwrap_or(name));
        let names: Vec<String> = self.place.names()?.into_iter().filter(is_ours).collect();
        let dropped = names.iter().filter(|name| !kept.contains(name));
        dropped.map(|name| self.place.remove(name)).try_fold(0, |n, removed| removed.map(|()| n + 1))
    }
}

/// Returns the path and identity of the file of `object`, in process `pid` or in a program that does not run.
pub fn file_of(pid: Option<u32>, object: &Object) -> Option<(PathBuf, Identity)> {
    let found = match pid {
        Some(pid) => Source::find(pid, object).ok()?.identity,
        None => identity(&std::fs::metadata(&object.path).ok()?),
    };
    Some((object.path.clone(), found))
}

/// Returns device and inode of the file that a process executes, whose `/proc/PID/exe` is `exe`.
///
/// # Errors
/// stat(2): the process has ended, or is another user's.
pub(crate) fn executed(exe: &Path) -> std::io::Result<(u64, u64)> {
    let meta = std::fs::metadata(exe)?;
    Ok((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn file(inode: u64) -> Identity {
        Identity { device: 1, inode, bytes: 3, modified: (4, 5), changed: (6, 7) }
    }

    fn notes() -> (tempfile::TempDir, Notes) {
        let dir = tempfile::TempDir::new().unwrap();
        let notes = Notes::at(&dir.path().join("x.seen"), IfAbsent::Make).unwrap();
        (dir, notes)
    }

    #[test]
    fn what_is_not_ours_alone_is_not_read() {
        let (dir, notes) = notes();
        let life = Some(Duration::from_millis(5));
        notes.add(Path::new("/bin/x"), &file(2), life, None).unwrap();
        notes.add(Path::new("/bin/x"), &file(2), life, Some(&Touched::default())).unwrap();
        let note = notes.of(&file(2)).unwrap();
        assert_eq!((note.lives.runs, note.touched), (2, Some(Touched::default())));
        let path = notes.path().join(record_name(1, 2));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // It says nothing about a changed file, and the next run begins anew.
        let changed = Identity { changed: (6, 8), ..file(2) };
        assert!(notes.of(&changed).is_none());
        notes.add(Path::new("/bin/x"), &changed, life, None).unwrap();
        assert_eq!(notes.of(&changed).unwrap().lives.runs, 1);
        assert!(notes.of(&file(2)).is_none());

        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(notes.of(&changed).is_none(), "others could have written it");
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        fs::set_permissions(dir.path().join("elsewhere"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(notes.of(&changed).is_none(), "a link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).unwrap();
        assert!(notes.of(&changed).is_none(), "too long");
        nix::unistd::mkfifo(&notes.path().join(record_name(1, 3)), Mode::S_IRWXU).unwrap();
        assert!(notes.of(&file(3)).is_none(), "a FIFO, without waiting");
    }

    #[test]
    fn there_are_never_too_many() {
        let (_dir, notes) = notes();
        for n in 0..MOST as u64 + 9 {
            notes.add(Path::new("/bin/x"), &file(n), None, None).unwrap();
        }
        assert_eq!(notes.all().unwrap().len(), MOST);
        assert!(notes.of(&file(MOST as u64 + 8)).is_some());
        // None of these files exists.
        assert_eq!(notes.gc().unwrap(), MOST);
        assert_eq!(notes.drop_all().unwrap(), 0);
        assert!(!notes.path().exists());
    }

    #[test]
    fn twenty_writers_lose_nothing() {
        let (_dir, notes) = notes();
        std::thread::scope(|scope| {
            for n in 0..20_u64 {
                let notes = &notes;
                scope.spawn(move || {
                    let mut touched = Touched::default();
                    touched.mark(n << 21, 1);
                    let life = Some(Duration::from_millis(10));
                    notes.add(Path::new("/bin/x"), &file(2), life, Some(&touched)).unwrap();
                });
            }
        });
        let note = notes.of(&file(2)).unwrap();
        assert_eq!((note.lives.runs, note.lives.mean()), (20, Some(Duration::from_millis(10))));
        assert_eq!(note.touched.unwrap().bytes(), 20 * hugelift_core::note::GRANULE);
    }
}
