// SPDX-License-Identifier: Apache-2.0
//! Finds the entry for an object, or makes it.

use super::entry::{self, Compare, Key, Naming};
use super::error::StoreError;
use super::opened::Store;
use super::public::{AccessCheck, Readers};
use super::source::Source;
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::budget::{Budget, Cost};
use hugelift_core::entry_elf::Names;
use hugelift_core::maps::Mapping;
use hugelift_core::record::{self, Evidence, Record, lay_out, record_name};
use hugelift_core::snapshot::Object;
use hugelift_linux::faultpoint;
use hugelift_linux::proc::mapped::MappedFiles;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::unistd::linkat;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
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
pub(super) struct StoreQuery<'a> {
    pub pid: u32,
    pub files: &'a MappedFiles,
    pub object: &'a Object,
    pub ranges: &'a [Range],
    /// Those of the ranges that are not code. For code the snapshot knows whether it is the file's.
    pub rodata: &'a [Range],
    pub page: PageSize,
    pub moment: Moment,
    pub mappings: &'a [Mapping],
    /// Whether an entry that does not exist is made.
    pub makes: bool,
}

impl StoreQuery<'_> {
    /// Finds the object's file.
    pub(super) fn source(&self) -> Result<Source, StoreError> {
        faultpoint::moment();
        Source::find(self.files, self.object, self.mappings)
    }

    /// Returns whether the process may have other bytes than the file at this moment, or other headers: it runs, its user
    /// is another one, or it is not certain which file it has mapped.
    fn may_differ(&self, source: &Source) -> bool {
        self.moment == Moment::Running || self.files.are_of_another_user() || !source.is_proven()
    }
}

impl Store {
    /// Returns the entry for `source`, if there is one, it and its source are unchanged since it was made, and
    /// its bytes are those of the program. An entry of which the file itself shows that it is outdated is removed. What
    /// the process has in its memory removes none: other processes use it.
    pub(super) fn look_up(
        &self,
        query: &StoreQuery,
        source: &Source,
        access: &mut AccessCheck,
    ) -> Option<(Record, File)> {
        let name = record_name(source.identity.device, source.identity.inode);
        let (mut record, noted) = self.read(&name)?;
        if record.public && self.may_publish() && self.is_private_now(&record, query, access) {
            self.forget(&name, &record);
            return None;
        }
        // If this start finds better evidence, later ones need not compare every byte.
        let renews = record.evidence == Evidence::Bytes && self.is_own() && source.is_proven();
        let evidence = if renews { source.evidence() } else { record.evidence };
        let file = match self.current(&record, source) {
            Ok(file) => self.is_same(&record, &file, query, source).then_some(file)?,
            Err(Outdated) => {
                if self.is_own() && source.is_proven() {
                    self.forget(&name, &record);
                }
                return None;
            }
        };
        // `gc` goes by the time of the last use.
        let _ = nix::sys::stat::futimens(&noted, &TimeSpec::UTIME_OMIT, &TimeSpec::UTIME_NOW);
        if evidence != record.evidence && source.is_unchanged() {
            record.evidence = evidence;
            self.renew(&record);
        }
        Some((record, file))
    }

    /// Returns whether not all users may read the object of a public entry any more: neither by the path at which it was
    /// public, nor by that of this process. A user can make a link to a public file that others cannot reach.
    fn is_private_now(&self, record: &Record, query: &StoreQuery, access: &mut AccessCheck) -> bool {
        let mut readers = |pid, path: &Path| access.readers(pid, path, &record.source);
        readers(None, &record.path) == Readers::Some
            && readers(Some(query.pid), &query.object.path) != Readers::All
    }

    /// Writes a record with better evidence than the one before, unless another start holds the lock.
    fn renew(&self, record: &Record) {
        let written = self.place.lock(Duration::ZERO).and_then(|_lock| self.write_record(record));
        if let Err(error) = written {
            tracing::debug!(%error, path = ?record.path, "a record");
        }
    }

    /// Opens the file of an entry, if it and the object's file are as the record says.
    fn current(&self, record: &Record, source: &Source) -> Result<File, Outdated> {
        let opened = entry::open(&self.place.dir, &record.entry, self.place.owner);
        let (file, held) = opened.ok_or(Outdated)?;
        if record.source == source.identity && held == record.held { Ok(file) } else { Err(Outdated) }
    }

    /// Returns whether an entry has the program's bytes at all ranges.
    fn is_same(&self, record: &Record, file: &File, query: &StoreQuery, source: &Source) -> bool {
        let laid_out = query.ranges.iter().map(|r| Some((*r, record.offset_of(*r, query.object.bias)?)));
        let Some(laid_out) = laid_out.collect::<Option<Vec<(Range, u64)>>>() else { return false };
        let how = match record.evidence {
            Evidence::Times if source.is_known_by_its_times() => Compare::Some,
            _ => Compare::All,
        };
        faultpoint::moment();
        let same = |(range, offset): &(Range, u64)| entry::is_same(file, *offset, query.pid, *range, how);
        record.page == query.page.bytes() && laid_out.iter().all(same)
    }

    /// Returns whether an entry that this process cannot use may be replaced by one for it. An entry that is good stays
    /// if the process is another user's, who may have mapped the file anyhow.
    fn may_replace(&self, query: &StoreQuery, source: &Source) -> bool {
        let name = record_name(source.identity.device, source.identity.inode);
        let Some((record, _)) = self.read(&name) else { return true };
        let is_good = self.current(&record, source).is_ok_and(|file| source.holds(&record.spans, &file));
        !(query.files.are_of_another_user() && is_good)
    }

    /// Checks that this user may add an entry of `bytes`, and that there is memory for it.
    fn may_make(&self, bytes: u64, budget: &Budget) -> Result<(), StoreError> {
        if !self.is_own() {
            return Err(StoreError::hostile(&self.place.path, "belongs to root, and only root adds to it"));
        }
        budget.lack(Cost::copy(bytes)).map_or(Ok(()), |reason| Err(StoreError::Memory(reason)))
    }

    /// Makes the entry that `look_up` did not find.
    pub(super) fn make(
        &self,
        query: &StoreQuery,
        source: &Source,
        budget: &mut Budget,
        access: &mut AccessCheck,
    ) -> Result<(Record, File), StoreError> {
        // This check comes before the symbols are read, which takes memory itself and gives the exact size.
        let bytes = query.ranges.iter().map(|r| r.len()).sum::<u64>();
        self.may_make(bytes, budget)?;
        let _lock = self.place.lock(PATIENCE)?;
        if let Some(found) = self.look_up(query, source, access) {
            return Ok(found);
        }
        if !self.may_replace(query, source) {
            return Err(StoreError::OtherLayout { path: query.object.path.clone().into() });
        }
        // The copy takes so long that checking the other entries adds little.
        self.close_private(access)?;
        self.close_unnamed()?;
        let spans = lay_out(query.ranges, query.object.bias, query.page);
        let names = Names::new(query.object.headers.machine, &source.functions(), &spans);
        let need = bytes + names.bytes();
        self.make_room(need)?;
        budget.take(Cost::copy(need)).map_err(StoreError::Memory)?;
        // This comes before the bytes are read: a later store to the file moves its times.
        let evidence = if source.is_proven() { source.evidence() } else { Evidence::Bytes };
        let public = self.may_publish()
            && access.readers(Some(query.pid), &source.path, &source.identity) == Readers::All;
        let key = if public { None } else { Some(self.key()?) };
        let naming = Naming {
            spans: &spans,
            names: (names.head.len() as u64, names.tail.len() as u64),
            build_id: query.object.build_id.as_deref(),
            page: query.page,
            key: key.as_ref(),
        };
        let fresh = entry::fill(&self.place.dir, query.pid, query.ranges, &names, &naming)?;
        faultpoint::moment();
        if query.may_differ(source) && !source.holds(&spans, &fresh.file) {
            return Err(StoreError::Written { path: query.object.path.clone().into() });
        }
        let names = naming.names;
        let mut record = Record {
            version: record::VERSION,
            path: query.object.path.clone(),
            build_id: query.object.build_id.clone(),
            source: source.identity,
            evidence,
            public,
            entry: fresh.name.clone(),
            held: source.identity, // known once it is published
            page: query.page.bytes(),
            skew: query.object.bias % query.page.bytes(),
            spans,
            names,
        };
        let file = self.publish(fresh, &mut record, key.as_ref())?;
        // The file must still be the same after all of it has been read.
        if !source.is_unchanged() {
            return Err(StoreError::Written { path: query.object.path.clone().into() });
        }
        faultpoint::pass(query.pid.cast_signed());
        self.write_record(&record)?;
        Ok((record, file))
    }

    /// Gives a new entry its name; returns its file, open for reading, which all processes map.
    fn publish(
        &self,
        fresh: entry::Fresh,
        record: &mut Record,
        key: Option<&Key>,
    ) -> Result<File, StoreError> {
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
        match link() {
            Err(Errno::EEXIST) => {
                // An entry of the same contents, or one that a killed start has left.
                if let Some((file, held)) = entry::open(dir, &fresh.name, self.place.owner) {
                    record.held = held;
                    if held.bytes == fresh.file.metadata().map_err(failed)?.len()
                        && entry::name_of(&file, record, key).is_ok_and(|name| name == fresh.name)
                        && file.metadata().is_ok_and(|m| m.mode() & 0o7777 == mode)
                    {
                        return Ok(file);
                    }
                }
                self.place.close(&fresh.name)?;
                link().map_err(|e| StoreError::here("publish a file", e))?;
            }
            other => other.map_err(|e| StoreError::here("publish a file", e))?,
        }
        drop(fresh.file);
        let (file, held) = entry::open(dir, &fresh.name, self.place.owner).ok_or(StoreError::Unreadable)?;
        record.held = held;
        Ok(file)
    }

    /// Writes a record, wholly or not at all.
    fn write_record(&self, record: &Record) -> Result<(), StoreError> {
        let json =
            record.to_json().map_err(|e| StoreError::here_io("write a record", io::Error::other(e)))?;
        let name = record_name(record.source.device, record.source.inode);
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let mode = if record.public { Mode::from_bits_truncate(0o644) } else { private };
        self.place.replace(&name, &json, mode)
    }
}

/// An entry or the file that it was made from is not as its record says.
struct Outdated;
