// SPDX-License-Identifier: Apache-2.0
//! Administration of a store: what is in it, whether it is intact, and making room.

use super::entry::{self, Key};
use super::error::StoreError;
use super::names::{KEY, LOCK, MACHINE_WIDE, NEW, SEEN};
use super::opened::Store;
use super::place;
use super::public::{AccessCheck, Readers};
use super::source::identity;
use hugelift_core::maps::FileId;
use hugelift_core::record::{Record, is_entry, is_record};
use hugelift_linux::proc::procfs::Process;
use nix::sys::stat::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How long `gc` and `drop` wait for a start that makes entries.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long notes of a first start are of use.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Whether an entry can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// As it was made.
    Good,
    /// The object's file is another one now, or was changed.
    Changed,
    /// The object's file is gone.
    Gone,
    /// The entry is not what was written, or its file is missing.
    Damaged,
    /// Every user could read the entry, but not every user may read the object any more. The entry was
    /// closed to others and removed when this was found.
    Private,
}

/// An entry, as it is now.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object.
    pub path: PathBuf,
    /// The name of its file in the store.
    pub name: String,
    /// Bytes of the object that it holds.
    pub bytes: u64,
    /// How many of them are on huge pages.
    pub huge: u64,
    /// The processes that map it, as far as the caller may see them.
    pub users: Vec<u32>,
    /// When it was made.
    pub made: SystemTime,
    /// When a start last used it.
    pub used: SystemTime,
    /// Whether it can be used.
    pub state: State,
    record: String,
    file: Option<FileId>,
}

/// The files that were removed from a store.
#[derive(Clone, Debug, Default)]
pub struct Freed {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The number of files without a record, and of notes.
    pub others: usize,
}

pub(super) fn time((seconds, nanos): (i64, i64)) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanos.clamp(0, 999_999_999) as u32)
}

impl Store {
    /// Returns every entry, the one used last first. With `whole` their bytes are read and compared
    /// with what was written. Entries that not every user may read any more are closed to others.
    ///
    /// # Errors
    /// The directory cannot be read, or an entry cannot be closed.
    pub fn entries(&self, whole: bool) -> Result<Vec<Entry>, StoreError> {
        let access = &mut AccessCheck::default();
        let key = self.known_key();
        let mut entries = Vec::new();
        let mut any_private = false;
        for name in self.place.names()?.into_iter().filter(|n| is_record(n)) {
            if let Some((record, noted)) = self.read(&name) {
                let private = self.is_private(&record, access);
                any_private |= private;
                entries.push(self.entry(name, &record, &noted, whole.then_some(key.as_ref()), private));
            }
        }
        if any_private {
            self.close_private(access)?;
        }
        let mut users = users(&entries.iter().filter_map(|e| e.file).collect());
        for entry in &mut entries {
            entry.users = entry.file.and_then(|file| users.remove(&file)).unwrap_or_default();
        }
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
        Ok(entries)
    }

    /// Describes the entry of `record`. With `whole`, which has the store's secret, all bytes are read.
    fn entry(
        &self,
        record_name: String,
        record: &Record,
        noted: &File,
        whole: Option<Option<&Key>>,
        private: bool,
    ) -> Entry {
        let opened = entry::open(&self.place.dir, &record.entry, self.place.owner);
        let sound = opened.filter(|(file, held)| {
            *held == record.held
                && whole.is_none_or(|key| {
                    entry::name_of(file, record, key).is_ok_and(|name| name == record.entry)
                })
        });
        let state = match (&sound, std::fs::metadata(&record.path)) {
            (None, _) => State::Damaged,
            (_, Err(_)) => State::Gone,
            (_, Ok(meta)) if private && meta.ino() == record.source.inode => State::Private,
            (_, Ok(meta)) if identity(&meta) != record.source => State::Changed,
            _ => State::Good,
        };
        let used = noted.metadata().map_or((0, 0), |m| (m.mtime(), m.mtime_nsec()));
        let device = record.held.device;
        Entry {
            path: record.path.clone(),
            name: record.entry.clone(),
            bytes: record.bytes(),
            huge: sound.as_ref().and_then(|(file, _)| entry::huge_bytes(file, record).ok()).unwrap_or(0),
            users: Vec::new(),
            made: time(record.held.changed),
            used: time(used),
            state,
            record: record_name,
            file: sound.map(|_| FileId {
                major: libc::major(device),
                minor: libc::minor(device),
                inode: record.held.inode,
            }),
        }
    }

    /// Removes an entry that a start has found outdated.
    pub(super) fn forget(&self, name: &str, record: &Record) {
        tracing::debug!(?name, path = ?record.path, "an outdated entry is removed");
        if let Err(error) = self.remove_all(&[(name, &record.entry)]) {
            tracing::debug!(%error, ?name, "an outdated entry cannot be removed");
        }
    }

    /// Removes these records and the entries that no other record names.
    fn remove_all(&self, records: &[(&str, &str)]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        records.iter().try_for_each(|(record, _)| self.place.close(record))?;
        let named: BTreeSet<String> = self.records()?.into_iter().map(|(_, record)| record.entry).collect();
        let mut unnamed = records.iter().filter(|(_, entry)| !named.contains(*entry));
        unnamed.try_for_each(|(_, entry)| self.place.close(entry))
    }

    fn records(&self) -> Result<Vec<(String, Record)>, StoreError> {
        let names = self.place.names()?.into_iter().filter(|n| is_record(n));
        Ok(names.filter_map(|name| self.read(&name).map(|(record, _)| (name, record))).collect())
    }

    /// Returns whether every user may read this entry, but perhaps not its object: the object's modes
    /// forbid it, or it no longer exists.
    fn is_private(&self, record: &Record, access: &mut AccessCheck) -> bool {
        record.public
            && self.may_publish()
            && access.readers(None, &record.path, &record.source) == Readers::Some
    }

    /// Removes every entry of root's store that all users may read although they may no longer read its
    /// object. Each is first closed to others. An entry stays if another object of the same bytes is still
    /// public.
    pub(super) fn close_private(&self, access: &mut AccessCheck) -> Result<(), StoreError> {
        if !self.may_publish() {
            return Ok(());
        }
        let mut records = self.records()?;
        records.retain(|(_, record)| self.is_private(record, access));
        let names: Vec<(&str, &str)> = records.iter().map(|(name, r)| (&**name, &*r.entry)).collect();
        self.remove_all(&names)
    }

    /// Removes entries that others may read and no record names, as an earlier version of hugelift may have
    /// left them. Each is first closed to others. The caller has the lock, without which no entry is made.
    pub(super) fn close_unnamed(&self) -> Result<(), StoreError> {
        if !self.may_publish() {
            return Ok(());
        }
        let named: BTreeSet<String> = self.records()?.into_iter().map(|(_, record)| record.entry).collect();
        let is_open = |name: &str| {
            place::stat_at(&self.place.dir, name)
                .is_ok_and(|stat| stat.st_mode & (libc::S_IRWXG | libc::S_IRWXO) != 0)
        };
        let names = self.place.names()?;
        let mut unnamed =
            names.iter().filter(|name| is_entry(name) && !named.contains(*name) && is_open(name));
        unnamed.try_for_each(|name| self.place.close(name))
    }

    /// Returns the secret in the names of entries that not every user may read; a missing one is made. The
    /// caller has the lock.
    pub(super) fn key(&self) -> Result<Key, StoreError> {
        if let Some(key) = self.known_key() {
            return Ok(key);
        }
        let key = entry::new_key().map_err(|e| StoreError::here_io("make a key", e))?;
        self.place.replace(KEY, &key, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(key)
    }

    fn known_key(&self) -> Option<Key> {
        let (bytes, _) = self.place.read(KEY, size_of::<Key>() as u64)?;
        bytes.try_into().ok()
    }

    /// Removes the entries that cannot be used any more. Then removes those that no process maps, the one unused
    /// for longest first, until the entries take no more than `budget` bytes.
    ///
    /// # Errors
    /// Another process keeps the lock, or a file cannot be removed.
    pub fn gc(&self, budget: Option<u64>) -> Result<Freed, StoreError> {
        let _lock = self.place.lock(PATIENCE)?;
        self.clear(budget.unwrap_or_else(|| self.budget()))
    }

    /// Removes the entries for which `wanted` returns true.
    ///
    /// # Errors
    /// See [`Store::gc`].
    pub fn drop_entries(&self, wanted: impl Fn(&Entry) -> bool) -> Result<Freed, StoreError> {
        let _lock = self.place.lock(PATIENCE)?;
        let entries: Vec<Entry> = self.entries(false)?.into_iter().filter(|e| wanted(e)).collect();
        self.take_out(&entries)?;
        Ok(Freed { entries, others: 0 })
    }

    /// Removes everything that hugelift has put into a store, and its directory.
    ///
    /// # Errors
    /// See [`Store::gc`]; also if there are other files in it.
    pub fn drop_all(&self) -> Result<Freed, StoreError> {
        let _lock = self.place.lock(PATIENCE)?;
        let mut freed = self.clear(self.budget())?;
        let entries = self.entries(false)?;
        self.take_out(&entries)?;
        freed.entries.extend(entries);
        for name in self.place.names()?.into_iter().filter(|n| is_ours(n)) {
            self.place.remove(&name)?;
        }
        let path = &self.place.path;
        if path == std::path::Path::new(MACHINE_WIDE) {
            place::unmount()?;
        } else {
            self.place.remove_dir()?;
        }
        Ok(freed)
    }

    /// Makes room for `need` bytes more.
    pub(super) fn make_room(&self, need: u64) -> Result<(), StoreError> {
        let budget = self.budget().checked_sub(need).ok_or(StoreError::Full { need })?;
        let held: u64 = self.place.names()?.iter().filter_map(|n| self.size(n)).sum();
        if held > budget || entry::room(&self.place.dir).1 < need {
            self.clear(budget)?;
            let held: u64 = self.place.names()?.iter().filter_map(|n| self.size(n)).sum();
            if held > budget || entry::room(&self.place.dir).1 < need {
                return Err(StoreError::Full { need });
            }
        }
        Ok(())
    }

    /// Returns the memory that entries may take: half the size of the file system.
    pub fn budget(&self) -> u64 {
        entry::room(&self.place.dir).0 / 2
    }

    /// Returns the bytes that an entry takes.
    fn size(&self, name: &str) -> Option<u64> {
        let stat = is_entry(name).then(|| place::stat_at(&self.place.dir, name).ok())??;
        u64::try_from(stat.st_blocks).ok()?.checked_mul(512)
    }

    fn clear(&self, budget: u64) -> Result<Freed, StoreError> {
        let mut freed = Freed::default();
        let (mut good, bad): (Vec<Entry>, Vec<Entry>) =
            self.entries(false)?.into_iter().partition(|e| e.state == State::Good);
        self.take_out(&bad)?;
        freed.entries = bad;
        let kept: BTreeSet<&str> = good.iter().flat_map(|e| [e.name.as_str(), e.record.as_str()]).collect();
        let old = |name: &str| {
            let Ok(stat) = place::stat_at(&self.place.dir, name) else { return false };
            time((stat.st_mtime, 0)).elapsed().is_ok_and(|age| age > FORGOTTEN)
        };
        let is_rest = |n: &String| {
            is_ours(n)
                && n != LOCK
                && n != KEY
                && !kept.contains(n.as_str())
                && (!n.ends_with(SEEN) || old(n))
        };
        for name in self.place.names()?.iter().filter(|n| is_rest(n)) {
            self.place.close(name)?;
            freed.others += 1;
        }
        let mut held: u64 = good.iter().map(|e| e.bytes).sum();
        while held > budget {
            // An entry that is mapped would stay in memory even if it were removed.
            let Some(oldest) = good.iter().rposition(|e| e.users.is_empty()) else { break };
            let entry = good.remove(oldest);
            self.take_out(std::slice::from_ref(&entry))?;
            held -= entry.bytes;
            freed.entries.push(entry);
        }
        Ok(freed)
    }

    fn take_out(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let records: Vec<(&str, &str)> = entries.iter().map(|e| (&*e.record, &*e.name)).collect();
        self.remove_all(&records)
    }
}

/// Returns whether `name` is one that hugelift gives to files of a store.
fn is_ours(name: &str) -> bool {
    let stem = name.strip_suffix(NEW).unwrap_or(name);
    if stem == KEY {
        return true;
    }
    let stem = stem.strip_suffix(SEEN).map_or(stem.to_string(), |stem| format!("{stem}.json"));
    is_entry(name) || name == LOCK || is_record(&stem)
}

/// Returns the processes that map each of `files`.
fn users(files: &BTreeSet<FileId>) -> BTreeMap<FileId, Vec<u32>> {
    let mut users: BTreeMap<FileId, Vec<u32>> = BTreeMap::new();
    for pid in Process::all().unwrap_or_default() {
        // A process that ends meanwhile, or that is another user's, is left out.
        let Ok(maps) = Process::new(pid).with_memory().maps() else { continue };
        let mapped: BTreeSet<FileId> = maps.iter().map(|m| m.file).filter(|f| files.contains(f)).collect();
        for file in mapped {
            users.entry(file).or_default().push(pid);
        }
    }
    users
}
