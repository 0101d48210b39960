// SPDX-License-Identifier: Apache-2.0
//! Finds the entries for an object, or makes an entry of the bytes that they lack.

use super::entry::{self, Compare, Naming};
use super::error::StoreError;
use super::opened::Store;
use super::public::{AccessCheck, Readers};
use super::source::Source;
use hugelift_core::addr::{PageSize, Range, without};
use hugelift_core::budget::{Budget, Cost};
use hugelift_core::entry_elf::Names;
use hugelift_core::maps::Mapping;
use hugelift_core::record::{self, EntryFile, Evidence, Held, MOST_ENTRIES, Record, lay_out, record_name_on};
use hugelift_core::snapshot::Object;
use hugelift_linux::faultpoint;
use hugelift_linux::proc::mapped::MappedFiles;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock};
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::unistd::linkat;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// How long a start waits for another one that is making entries.
const PATIENCE: Duration = Duration::from_secs(3);

/// When the store is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The program has not run yet: its memory holds what its files hold.
    Start,
    /// The program runs, and may change its memory while it is read. So a new entry is compared with the
    /// file: other programs will run it.
    Running,
}

/// The object that a start looks up.
#[derive(Clone, Copy)]
pub(super) struct StoreQuery<'a> {
    pub pid: u32,
    pub files: &'a MappedFiles,
    pub object: &'a Object,
    /// What the process can use.
    pub ranges: &'a [Range],
    /// What of it is copied if the store does not have it.
    pub copied: &'a [Range],
    /// The ranges that are not code. For code the snapshot knows whether its bytes are the file's.
    pub rodata: &'a [Range],
    pub page: PageSize,
    pub moment: Moment,
    pub mappings: &'a [Mapping],
    /// The memory node whose copies the process wants; `None` for copies that are for all nodes.
    pub node: Option<u32>,
}

/// An entry, and what of it the process can map.
#[derive(Debug)]
pub(super) struct Found {
    pub file: File,
    /// Bytes of the process, and their offset in the file.
    pub copies: Vec<(Range, u64)>,
}

/// Returns what of `ranges` was not found.
pub(super) fn lacking(ranges: &[Range], found: &[Found]) -> Vec<Range> {
    without(ranges.to_vec(), found.iter().flat_map(|found| &found.copies).map(|(range, _)| *range))
}

impl StoreQuery<'_> {
    /// Finds the object's file.
    pub(super) fn source(&self) -> Result<Source, StoreError> {
        faultpoint::moment();
        Source::find(self.files, self.object, self.mappings)
    }

    /// Returns the name of the record of the entries that it wants.
    fn record_name(&self, source: &Source) -> String {
        record_name_on(source.identity.device, source.identity.inode, self.node)
    }

    /// Returns whether the process may have other bytes than the file at this moment, or other headers: it runs, its user
    /// is another one, or it is not certain which file it has mapped.
    fn may_differ(&self, source: &Source) -> bool {
        self.moment == Moment::Running || self.files.are_of_another_user() || !source.is_proven()
    }
}

impl Store {
    /// Returns the entries for `source` that hold bytes of the ranges, if they and the source are unchanged since they
    /// were made, and they have the same bytes as the program. Entries are removed if the files themselves show that they are
    /// outdated. If only this process has other bytes in its memory, they stay: other processes use them. `lock` is the store's
    /// lock, if the caller has it.
    pub(super) fn look_up(
        &self,
        query: &StoreQuery,
        source: &Source,
        access: &mut AccessCheck,
        lock: Option<&Flock<OwnedFd>>,
    ) -> Vec<Found> {
        let name = query.record_name(source);
        let Some((record, noted)) = self.read_of(query, &name) else { return Vec::new() };
        if record.public && self.may_publish() && self.is_private_now(&record, query, access) {
            // At once: it is closed although another process may have the lock for long.
            self.forget(&name, &record);
            return Vec::new();
        }
        let still = |act: &dyn Fn()| self.if_still(query, &name, &record, lock, act);
        // If this start finds better evidence, later ones need not compare every byte.
        let renews = record.evidence == Evidence::Bytes && self.is_own() && source.is_proven();
        let evidence = if renews { source.evidence() } else { record.evidence };
        let files = match self.current(&record, source) {
            Ok(files) => files,
            Err(Outdated) => {
                if self.is_own() && source.is_proven() {
                    still(&|| self.forget(&name, &record));
                }
                return Vec::new();
            }
        };
        let Some(held) = same(&record, &files, query, source) else { return Vec::new() };
        // `gc` goes by the time of the last use.
        let _ = nix::sys::stat::futimens(&noted, &TimeSpec::UTIME_OMIT, &TimeSpec::UTIME_NOW);
        if evidence != record.evidence && source.is_unchanged() {
            let better = Record { evidence, ..record.clone() };
            still(&|| self.renew(&better));
        }
        let of = |entry: usize| held.iter().filter(move |held| held.entry == entry);
        let found = files.into_iter().enumerate().map(|(entry, file)| {
            let copies = of(entry).map(|held| (held.range, held.offset)).collect();
            Found { file, copies }
        });
        found.filter(|found| !found.copies.is_empty()).collect()
    }

    /// Returns whether not all users may read the object of a public entry any more: neither by the path at which it was
    /// public, nor by the path that this process has. A user can make a link to a public file that others cannot reach.
    fn is_private_now(&self, record: &Record, query: &StoreQuery, access: &mut AccessCheck) -> bool {
        let mut readers = |pid, path: &Path| access.readers(pid, path, &record.source);
        readers(None, &record.path) == Readers::Some
            && readers(Some(query.pid), &query.object.path) != Readers::All
    }

    /// Acts if the name still has this record and no other process has the lock. So nothing is lost that another one makes meanwhile.
    fn if_still(
        &self,
        query: &StoreQuery,
        name: &str,
        record: &Record,
        lock: Option<&Flock<OwnedFd>>,
        act: &dyn Fn(),
    ) {
        let ours = lock.is_none().then(|| self.place.lock(Duration::ZERO));
        if !matches!(ours, Some(Err(_))) && self.read_of(query, name).is_some_and(|(now, _)| now == *record) {
            act();
        }
    }

    /// Writes a record with better evidence than the one before.
    fn renew(&self, record: &Record) {
        if let Err(error) = self.write_record(record) {
            tracing::debug!(%error, path = ?record.path, "a record");
        }
    }

    /// Opens the files of the entries, if they and the object's file are as the record says.
    fn current(&self, record: &Record, source: &Source) -> Result<Vec<File>, Outdated> {
        if record.source != source.identity {
            return Err(Outdated);
        }
        let open = |held: &EntryFile| {
            let (file, identity) =
                entry::open(&self.place.dir, &held.name, self.place.owner).ok_or(Outdated)?;
            if identity == held.file { Ok(file) } else { Err(Outdated) }
        };
        record.entries.iter().map(open).collect()
    }

    /// Reads the record of a name, if it is for the node that is asked for, as its name says.
    fn read_of(&self, query: &StoreQuery, name: &str) -> Option<(Record, File)> {
        self.read(name).filter(|(record, _)| record.node == query.node)
    }

    /// Returns whether entries that this process cannot use may be replaced by one for it. Entries that are good stay
    /// if the process is another user's, who may have mapped the file anyhow.
    fn may_replace(&self, query: &StoreQuery, source: &Source) -> bool {
        let name = query.record_name(source);
        let Some((record, _)) = self.read_of(query, &name) else { return true };
        let is_good = self.current(&record, source).is_ok_and(|files| {
            record.entries.iter().zip(&files).all(|(entry, file)| source.holds(&entry.spans, file))
        });
        !(query.files.are_of_another_user() && is_good)
    }

    /// Checks that this user may add an entry of `bytes`, and that there is memory for it.
    fn may_make(&self, bytes: u64, budget: &Budget) -> Result<(), StoreError> {
        if !self.is_own() {
            return Err(StoreError::hostile(&self.place.path, "belongs to root, and only root adds to it"));
        }
        budget.lack(Cost::copy(bytes)).map_or(Ok(()), |reason| Err(StoreError::Memory(reason)))
    }

    /// Makes an entry of the bytes that `look_up` did not find. Returns all entries that the process can use.
    pub(super) fn make(
        &self,
        query: &StoreQuery,
        source: &Source,
        budget: &mut Budget,
        access: &mut AccessCheck,
    ) -> Result<Vec<Found>, StoreError> {
        // This check comes before the symbols are read, which takes memory itself and gives the exact size.
        let bytes = query.copied.iter().map(|r| r.len()).sum::<u64>();
        self.may_make(bytes, budget)?;
        let lock = self.place.lock(PATIENCE)?;
        // Another process may have made it meanwhile.
        let mut found = self.look_up(query, source, access, Some(&lock));
        let ranges = lacking(query.copied, &found);
        if ranges.is_empty() {
            return Ok(found);
        }
        let object = query.object;
        let is_usable = |record: &Record| {
            record.page == query.page.bytes()
                && record.skew == object.bias % query.page.bytes()
                && self
                    .current(record, source)
                    .is_ok_and(|files| same(record, &files, query, source).is_some())
        };
        let name = query.record_name(source);
        let read = || self.read_of(query, &name).map(|(record, _)| record).filter(is_usable);
        if read().is_none() && !self.may_replace(query, source) {
            return Err(StoreError::OtherLayout { path: object.path.clone().into() });
        }
        // The copy takes so long that checking the other entries adds little.
        self.close_private(access)?;
        self.close_unnamed()?;
        let spans = lay_out(&ranges, object.bias, query.page);
        let names = Names::new(object.headers.machine, &source.functions(), &spans);
        let need = ranges.iter().map(|r| r.len()).sum::<u64>() + names.bytes();
        self.make_room(need)?;
        budget.take(Cost::copy(need)).map_err(StoreError::Memory)?;
        // What there was may have been removed to make room.
        let before = read();
        if before.as_ref().is_some_and(|record| record.entries.len() >= MOST_ENTRIES) {
            return Err(StoreError::ManyEntries { path: object.path.clone().into() });
        }
        // This comes before the bytes are read: a later store to the file moves its times.
        let evidence = match &before {
            Some(record) if record.evidence == Evidence::Bytes => Evidence::Bytes,
            _ if source.is_proven() => source.evidence(),
            _ => Evidence::Bytes,
        };
        let public = match &before {
            Some(record) => record.public,
            None => {
                self.may_publish()
                    && access.readers(Some(query.pid), &source.path, &source.identity) == Readers::All
            }
        };
        let key = if public { None } else { Some(self.key()?) };
        let naming = Naming {
            spans: &spans,
            names: (names.head.len() as u64, names.tail.len() as u64),
            build_id: object.build_id.as_deref(),
            page: query.page,
            key: key.as_ref(),
            node: query.node,
        };
        let fresh = entry::fill(&self.place.dir, query.pid, &ranges, &names, &naming)?;
        faultpoint::moment();
        if query.may_differ(source) && !source.holds(&spans, &fresh.file) {
            return Err(StoreError::Written { path: object.path.clone().into() });
        }
        let mut record = before.unwrap_or_else(|| Record {
            version: record::VERSION,
            path: object.path.clone(),
            build_id: object.build_id.clone(),
            source: source.identity,
            evidence,
            public,
            page: query.page.bytes(),
            skew: object.bias % query.page.bytes(),
            node: query.node,
            entries: Vec::new(),
        });
        record.evidence = evidence;
        let mut copies = Vec::new();
        for (range, span) in ranges.iter().zip(&spans) {
            copies.push((*range, span.offset));
        }
        // The file must still be the same after all of it has been read.
        if !source.is_unchanged() {
            return Err(StoreError::Written { path: object.path.clone().into() });
        }
        let name = fresh.name.clone();
        let file = self.publish(fresh, &naming, &mut record)?;
        faultpoint::pass(query.pid.cast_signed());
        if let Err(error) = self.write_record(&record) {
            // An entry that no record names is in no list.
            if self.named().is_ok_and(|named| !named.contains(&name)) {
                // It cannot be helped if that fails too: the next collection takes it.
                let _ = self.place.close(&name);
            }
            return Err(error);
        }
        found.push(Found { file, copies });
        Ok(found)
    }

    /// Gives a new entry its name, and adds it to the record; returns its file, open for reading, which all processes map.
    fn publish(&self, fresh: entry::Fresh, naming: &Naming, record: &mut Record) -> Result<File, StoreError> {
        let dir = &self.place.dir;
        let mode = entry::mode(record.public);
        let failed = |e| StoreError::here_io("publish a file", e);
        fresh.file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        let nameless = format!("/proc/self/fd/{}", fresh.file.as_raw_fd());
        let link = || {
            linkat(
                nix::fcntl::AT_FDCWD,
                nameless.as_str(),
                dir,
                fresh.name.as_str(),
                AtFlags::AT_SYMLINK_FOLLOW,
            )
        };
        let mut add = |file| {
            let (name, spans) = (fresh.name.clone(), naming.spans.to_vec());
            record.entries.push(EntryFile { name, file, spans, names: naming.names });
        };
        match link() {
            Err(Errno::EEXIST) => {
                // An entry of the same contents, or one that a killed start has left.
                if let Some((file, held)) = entry::open(dir, &fresh.name, self.place.owner)
                    && held.bytes == fresh.file.metadata().map_err(failed)?.len()
                    && entry::name_of(&file, naming).is_ok_and(|name| name == fresh.name)
                    && file.metadata().is_ok_and(|m| m.mode() & 0o7777 == mode)
                {
                    add(held);
                    return Ok(file);
                }
                self.place.close(&fresh.name)?;
                link().map_err(|e| StoreError::here("publish a file", e))?;
            }
            other => other.map_err(|e| StoreError::here("publish a file", e))?,
        }
        drop(fresh.file);
        let (file, held) = entry::open(dir, &fresh.name, self.place.owner).ok_or(StoreError::Unreadable)?;
        add(held);
        Ok(file)
    }

    /// Writes a record, wholly or not at all.
    fn write_record(&self, record: &Record) -> Result<(), StoreError> {
        let json =
            record.to_json().map_err(|e| StoreError::here_io("write a record", io::Error::other(e)))?;
        let name = record_name_on(record.source.device, record.source.inode, record.node);
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let mode = if record.public { Mode::from_bits_truncate(0o644) } else { private };
        self.place.replace(&name, &json, mode)
    }
}

/// Returns what the entries hold of the query's ranges; `None` if they have other huge pages than the process, or other
/// bytes anywhere.
fn same(record: &Record, files: &[File], query: &StoreQuery, source: &Source) -> Option<Vec<Held>> {
    let page = query.page.bytes();
    if record.page != page || query.object.bias % page != record.skew {
        return None;
    }
    let how = match record.evidence {
        Evidence::Times if source.is_known_by_its_times() => Compare::Some,
        _ => Compare::All,
    };
    faultpoint::moment();
    let held: Vec<Held> =
        query.ranges.iter().flat_map(|range| record.held(*range, query.object.bias)).collect();
    let is_same = |held: &Held| {
        files
            .get(held.entry)
            .is_some_and(|file| entry::is_same(file, held.offset, query.pid, held.range, how))
    };
    held.iter().all(is_same).then_some(held)
}

/// An entry or the file that it was made from is not as its record says.
struct Outdated;
