// SPDX-License-Identifier: Apache-2.0
//! Administration of a store: what is in it, whether it is intact, and making room.

use super::entry::{self, Key, Naming};
use super::error::StoreError;
use super::names::{KEY, LOCK, MACHINE_WIDE, NEW, SEEN};
use super::opened::Store;
use super::place;
use super::public::{AccessCheck, Readers};
use super::source::identity;
use hugelift_core::addr::PageSize;
use hugelift_core::maps::FileId;
use hugelift_core::record::{EntryFile, Record, is_entry, is_record};
use hugelift_linux::proc::procfs::Process;
use nix::sys::stat::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How long `gc` and `drop` wait for a start that makes entries.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same before something is done without the lock.
const BRIEFLY: Duration = Duration::from_secs(1);
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

/// The entries of an object, as they are now.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object.
    pub path: PathBuf,
    /// The names of its files in the store.
    pub names: Vec<String>,
    /// Bytes of the object that they hold.
    pub bytes: u64,
    /// How many of them are on huge pages.
    pub huge: u64,
    /// The processes that map any of them, as far as the caller may see them.
    pub users: Vec<u32>,
    /// When the oldest was made.
    pub made: SystemTime,
    /// When a start last used them.
    pub used: SystemTime,
    /// Whether they can be used.
    pub state: State,
    record: String,
    files: BTreeSet<FileId>,
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
        self.list(whole, false)
    }

    /// Lists them. `is_locked`: the caller has the lock.
    fn list(&self, whole: bool, is_locked: bool) -> Result<Vec<Entry>, StoreError> {
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
            // It is done without the lock too, if that is not to be had: what is private must not stay open.
            let _lock = (!is_locked).then(|| self.place.lock(BRIEFLY));
            self.close_private(access)?;
        }
        let users = users(&entries.iter().flat_map(|e| &e.files).copied().collect());
        for entry in &mut entries {
            let of_files = entry.files.iter().filter_map(|file| users.get(file)).flatten().copied();
            entry.users = of_files.collect::<BTreeSet<u32>>().into_iter().collect();
        }
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
        Ok(entries)
    }

    /// Describes the entries of `record`. With `whole`, which has the store's secret, all bytes are read.
    fn entry(
        &self,
        record_name: String,
        record: &Record,
        noted: &File,
        whole: Option<Option<&Key>>,
        private: bool,
    ) -> Entry {
        let sound = |entry: &EntryFile| {
            let (file, held) = entry::open(&self.place.dir, &entry.name, self.place.owner)?;
            let has_its_name = |key| {
                let named = Naming::of(entry, record, key).and_then(|naming| entry::name_of(&file, &naming));
                named.is_ok_and(|name| name == entry.name)
            };
            (held == entry.file && whole.is_none_or(has_its_name)).then_some(file)
        };
        let sound: Option<Vec<File>> = record.entries.iter().map(sound).collect();
        let state = match (&sound, std::fs::metadata(&record.path)) {
            (None, _) => State::Damaged,
            (_, Err(_)) => State::Gone,
            (_, Ok(meta)) if private && meta.ino() == record.source.inode => State::Private,
            (_, Ok(meta)) if identity(&meta) != record.source => State::Changed,
            _ => State::Good,
        };
        let used = noted.metadata().map_or((0, 0), |m| (m.mtime(), m.mtime_nsec()));
        let page = PageSize::new(record.page).unwrap_or(PageSize::MB2);
        let files = sound.as_deref().unwrap_or_default().iter().zip(&record.entries);
        let id = |entry: &EntryFile| FileId {
            major: libc::major(entry.file.device),
            minor: libc::minor(entry.file.device),
            inode: entry.file.inode,
        };
        Entry {
            path: record.path.clone(),
            names: record.entries.iter().map(|entry| entry.name.clone()).collect(),
            bytes: record.bytes(),
            huge: files.clone().filter_map(|(file, entry)| entry::huge_bytes(file, entry, page).ok()).sum(),
            users: Vec::new(),
            made: time(record.entries.iter().map(|entry| entry.file.changed).min().unwrap_or_default()),
            used: time(used),
            state,
            record: record_name,
            files: files.map(|(_, entry)| id(entry)).collect(),
        }
    }

    /// Removes entries that a start has found outdated.
    pub(super) fn forget(&self, name: &str, record: &Record) {
        tracing::debug!(?name, path = ?record.path, "outdated entries are removed");
        if let Err(error) = self.remove_all(&[(name.into(), names(record))]) {
            tracing::debug!(%error, ?name, "outdated entries cannot be removed");
        }
    }

    /// Removes these records, each with the names of its entries, and the entries that no other record names.
    fn remove_all(&self, records: &[(String, Vec<String>)]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        records.iter().try_for_each(|(record, _)| self.place.close(record))?;
        let named = self.named()?;
        let entries = records.iter().flat_map(|(_, entries)| entries);
        entries.filter(|entry| !named.contains(*entry)).try_for_each(|entry| self.place.close(entry))
    }

    /// Returns the names of all entries that a record has.
    pub(super) fn named(&self) -> Result<BTreeSet<String>, StoreError> {
        Ok(self.records()?.iter().flat_map(|(_, record)| names(record)).collect())
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
        let private: Vec<_> = records.into_iter().map(|(name, record)| (name, names(&record))).collect();
        self.remove_all(&private)
    }

    /// Removes entries that others may read and no record names, as an earlier version of hugelift may have
    /// left them. Each is first closed to others. The caller has the lock, without which no entry is made.
    pub(super) fn close_unnamed(&self) -> Result<(), StoreError> {
        if !self.may_publish() {
            return Ok(());
        }
        let named = self.named()?;
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

    /// Removes the entries that cannot be used any more. Then removes entries that no process maps, the entry unused
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
        let entries: Vec<Entry> = self.list(false, true)?.into_iter().filter(|e| wanted(e)).collect();
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
        let entries = self.list(false, true)?;
        self.take_out(&entries)?;
        freed.entries.extend(entries);
        let names = self.place.names()?;
        // The lock is the last: without it another process may make entries.
        let all = names.iter().filter(|n| is_ours(n) && *n != LOCK).map(String::as_str).chain([LOCK]);
        all.into_iter().try_for_each(|name| self.place.remove(name))?;
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
            self.list(false, true)?.into_iter().partition(|e| e.state == State::Good);
        self.take_out(&bad)?;
        freed.entries = bad;
        let kept: BTreeSet<&str> =
            good.iter().flat_map(|e| e.names.iter().chain([&e.record])).map(String::as_str).collect();
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
        let records: Vec<_> = entries.iter().map(|e| (e.record.clone(), e.names.clone())).collect();
        self.remove_all(&records)
    }
}

/// Returns the names of a record's entries.
fn names(record: &Record) -> Vec<String> {
    record.entries.iter().map(|entry| entry.name.clone()).collect()
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
