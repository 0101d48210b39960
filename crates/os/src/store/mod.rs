// SPDX-License-Identifier: Apache-2.0
//! The store: code of programs on huge pages, once for all processes that run it.
//!
//! ```text
//!   start ---- record of its file? ---- file unchanged? entry as recorded? samples equal? -- map it
//!                   | none                     | no: forget it
//!                   '--------------------------'-- lock -- nameless copy -- hash -- name -- record
//! ```
//!
//! *What it trusts.* A store is the calling user's own, or root's. No other user can write to either, which
//! is checked on every use; so only accidents and changed files remain. A source file is recognized by its
//! times only if the next change was sure to move them when the file was copied ([`Evidence`]); of any other
//! file every byte is compared. An entry has no write permission, and any change by write(2), truncate(2) or
//! chmod(2) shows in its change time. What its owner stores to it through a writable mapping does not show
//! there; the samples find it if they hit it, and `hugelift store verify` finds it always.
//!
//! *What it discloses to others.* Nothing that they may not read. All users can read an entry of root's only
//! as long as they can read its object. That is checked at every use by root, whenever root adds an entry,
//! and by every `hugelift store` command (`Store::close_private`).

mod admin;
mod entry;
mod error;
mod place;
mod public;
mod source;

pub use admin::{Entry, Freed, State};
pub use error::StoreError;
pub use place::{IfAbsent, MACHINE_WIDE, VARIABLE, own_path};

use crate::machine::base_page;
use crate::proc::mapped::MappedFiles;
use crate::proc::pagemap;
use crate::proc::procfs::Process;
use crate::trace::faultpoint;
use entry::{Compare, Key, Naming};
use hugelift_core::addr::{PageSize, Range};
use hugelift_core::budget::{Budget, Cost};
use hugelift_core::entry_elf::Names;
use hugelift_core::maps::Mapping;
use hugelift_core::plan::{is_nearly_all, shareable};
use hugelift_core::policy::{Backing, Copies, Policy};
use hugelift_core::record::{self, Evidence, Record, lay_out, record_name};
use hugelift_core::relocate::base::{Sizes, shared_base};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{NotStored, Object, Part, Snapshot, Stored, StoredCopy};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::unistd::{geteuid, linkat};
use place::Place;
use public::{AccessCheck, Readers};
use source::Source;
use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a start waits for another one that is making entries.
const PATIENCE: Duration = Duration::from_secs(3);
/// A longer record was not written by hugelift.
const MAX_RECORD: u64 = 1 << 20;
/// The suffix of files in which earlier versions noted a start.
const SEEN: &str = ".seen";

/// The copies of the store that a process can map.
#[derive(Debug, Default)]
pub struct Offer {
    /// The copies, for the planner.
    pub stored: Stored,
    /// The files, in the order that [`StoredCopy::entry`] counts.
    pub files: Vec<File>,
    /// Bytes of memory that were taken for entries.
    pub made: u64,
}

/// Returns whether `shared` is the only backing that the user wants. Then the report says why there is no
/// copy. Where other backings follow, a missing copy is not a failure.
fn is_demanded(policy: &Policy) -> bool {
    policy.backings == [Backing::Shared]
}

/// Opens the calling user's store. It is made unless `lack` is a reason not to make entries in it.
fn own_store(lack: Option<Reason>) -> Result<Store, StoreError> {
    let if_absent = if lack.is_none() { IfAbsent::Make } else { IfAbsent::Leave };
    let own = own_path().and_then(|path| Store::open(&path, if_absent));
    own.map_err(|error| match (error, lack) {
        (StoreError::Missing { .. }, Some(reason)) => StoreError::Memory(reason),
        (error, _) => error,
    })
}

/// When the store is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The program has not run yet: its memory holds what its files hold.
    Start,
    /// The program runs, and may change its memory while it is read. So a new entry is compared with the
    /// file: other programs will run it.
    Running,
}

/// Looks up the objects of process `pid`, and copies those that the store does not have, if the policy lets it
/// copy now. Every failure is only a reason why there is no copy.
pub fn offer(pid: u32, snapshot: &Snapshot, policy: &Policy, moment: Moment) -> Offer {
    let mut offer = Offer::default();
    // The next start may want both parts, so an entry has both.
    let both = Policy { parts: vec![Part::Text, Part::Rodata], ..policy.clone() };
    let Some(page) = snapshot.machine.thp_page else { return offer };
    // Ranges that are huge in the page cache need no copy.
    let cached = |range: Range| {
        let bytes: u64 = snapshot.cached.iter().filter_map(|c| c.intersect(range)).map(Range::len).sum();
        policy.backings.contains(&Backing::Pagecache) && is_nearly_all(bytes, range.len())
    };
    let shareable = shareable(snapshot, &both);
    let of_objects = shareable.chunk_by(|a, b| a.0 == b.0);
    let wanted: Vec<_> = of_objects.filter(|of| !of.iter().all(|(.., range)| cached(*range))).collect();
    if wanted.is_empty() {
        return offer;
    }
    let mut budget = Budget::new(&snapshot.machine, policy.spare);
    let makes = policy.copies == Copies::All;
    let own = match makes {
        true => own_store(budget.lack(Cost::copy(page.bytes()))),
        false => own_path().and_then(|path| Store::open(&path, IfAbsent::Leave)),
    };
    let mut stores = StoreSet { machine: machine_wide(&own), own, access: AccessCheck::default() };
    let files = MappedFiles::of(Process::of(pid.cast_signed()));
    if stores.own.is_err() && stores.machine.is_none() && !is_demanded(policy) {
        return offer;
    }
    for of_object in wanted {
        let object = &snapshot.objects[of_object[0].0];
        let ranges: Vec<Range> = of_object.iter().map(|(.., range)| *range).collect();
        let rodata = of_object.iter().filter(|(_, part, _)| *part == Part::Rodata);
        let rodata: Vec<Range> = rodata.map(|(.., range)| *range).collect();
        let mappings = &snapshot.mappings;
        let ranges = &ranges;
        let files = &files;
        let query = StoreQuery { pid, files, object, ranges, rodata: &rodata, page, moment, mappings, makes };
        let began = Instant::now();
        let found = stores.get(&query, &mut budget);
        tracing::debug!(object = ?object.path, ?found, elapsed = ?began.elapsed(), "store");
        match found {
            Ok((record, file)) => {
                let entry = offer.files.len();
                offer.files.push(file);
                let copy = |&range: &Range| {
                    Some(StoredCopy { range, entry, offset: record.offset_of(range, object.bias)? })
                };
                offer.stored.copies.extend(ranges.iter().filter_map(copy));
            }
            Err(_) if !is_demanded(policy) => {}
            Err(error) => {
                let lack = |&range: &Range| (range, NotStored::from(&error));
                offer.stored.lacks.extend(ranges.iter().map(lack));
            }
        }
    }
    offer.made = snapshot.machine.memory_left.saturating_sub(budget.machine());
    offer
}

/// Returns whether [`offer`] may have a copy of an executable, so that it is worth moving to a common base:
/// there is a store, or it can be made.
pub fn may_have(policy: &Policy) -> bool {
    let own = own_path().and_then(|path| Store::open(&path, IfAbsent::Leave));
    let may_be = matches!(own, Ok(_) | Err(StoreError::Missing { .. }));
    may_be || is_demanded(policy) || machine_wide(&own).is_some()
}

/// Returns the inodes of the files of which the stores that the calling user can use have a record. [`offer`] has
/// nothing for other files unless it makes an entry. Returns `None` if a store cannot be listed: users other than root
/// may not list root's.
pub fn recorded_inodes() -> Option<BTreeSet<u64>> {
    let own = own_path().and_then(|path| Store::open(&path, IfAbsent::Leave));
    let machine = machine_wide(&own);
    let mut inodes = BTreeSet::new();
    for store in own.into_iter().chain(machine) {
        inodes.extend(store.place.names().ok()?.iter().filter_map(|name| record::inode_of(name)));
    }
    Some(inodes)
}

/// Returns what [`offer`] would have for a program that does not run, whose addresses are assumed.
pub fn preview(snapshot: &Snapshot, policy: &Policy) -> Stored {
    let mut stored = Stored::default();
    let mut budget = Budget::new(&snapshot.machine, policy.spare);
    let own = own_path().and_then(|path| Store::open(&path, IfAbsent::Leave));
    for (index, _, range) in shareable(snapshot, policy) {
        let object = &snapshot.objects[index];
        let name = || {
            let meta = std::fs::metadata(&object.path).ok()?;
            Some(record_name(meta.dev(), meta.ino()))
        };
        let copy = StoredCopy { range, entry: index, offset: range.start.0 };
        let lack = match &own {
            Ok(store) if name().and_then(|name| store.read(&name)).is_some() => {
                stored.copies.push(copy);
                continue;
            }
            Ok(_) | Err(StoreError::Missing { .. }) if policy.copies == Copies::Later => StoreError::Later,
            Ok(_) | Err(StoreError::Missing { .. }) => match budget.take(Cost::copy(range.len())) {
                Ok(()) => {
                    stored.copies.push(copy);
                    continue;
                }
                Err(reason) => StoreError::Memory(reason),
            },
            Err(error) => error.again(),
        };
        if is_demanded(policy) {
            stored.lacks.push((range, NotStored::from(&lack)));
        }
    }
    stored
}

/// Opens root's store, for users other than root who have not named another one.
fn machine_wide(own: &Result<Store, StoreError>) -> Option<Store> {
    let path = Path::new(MACHINE_WIDE);
    let named = std::env::var_os(VARIABLE).is_some_and(|v| !v.is_empty());
    if named || own.as_ref().is_ok_and(|own| own.place.path == path) {
        return None;
    }
    Store::open(path, IfAbsent::Leave).ok().filter(|store| store.place.owner == 0)
}

/// The object that a start looks up.
struct StoreQuery<'a> {
    pid: u32,
    files: &'a MappedFiles,
    object: &'a Object,
    ranges: &'a [Range],
    /// Those of the ranges that are not code. For code the snapshot knows whether it is the file's.
    rodata: &'a [Range],
    page: PageSize,
    moment: Moment,
    mappings: &'a [Mapping],
    /// Whether an entry that does not exist is made.
    makes: bool,
}

impl StoreQuery<'_> {
    /// Finds the object's file.
    fn source(&self) -> Result<Source, StoreError> {
        faultpoint::moment();
        Source::find(self.files, self.object, self.mappings)
    }

    /// Returns whether the process may have other bytes than the file at this moment, or other headers: it runs, its user
    /// is another one, or it is not certain which file it has mapped.
    fn may_differ(&self, source: &Source) -> bool {
        self.moment == Moment::Running || self.files.are_of_another_user() || !source.is_proven()
    }
}

/// The stores that a user can use.
struct StoreSet {
    own: Result<Store, StoreError>,
    machine: Option<Store>,
    /// It serves all objects of one process: most are in the same few directories.
    access: AccessCheck,
}

impl StoreSet {
    fn get(&mut self, query: &StoreQuery, budget: &mut Budget) -> Result<(Record, File), StoreError> {
        let StoreSet { own: opened, machine, access } = self;
        // This comes first: without a store nothing else needs to be found out.
        let own = match (&*opened, &*machine) {
            (Ok(own), _) => Some(own),
            (Err(_), Some(_)) => None,
            (Err(error), None) => return Err(error.again()),
        };
        if is_by_chance(query.object, query.page) {
            let path = query.object.path.clone();
            return Err(StoreError::ByChance { path: path.into(), page: query.page });
        }
        if is_written(query) {
            return Err(StoreError::Written { path: query.object.path.clone().into() });
        }
        let source = query.source()?;
        for store in machine.iter().chain(own) {
            if let Some(found) = store.look_up(query, &source, access) {
                return Ok(found);
            }
        }
        match (own, &*opened) {
            (Some(own), _) if query.makes => own.make(query, &source, budget, access),
            (Some(_), _) => Err(StoreError::Later),
            (None, Err(error)) => Err(error.again()),
            (None, Ok(_)) => Err(StoreError::NoPlace),
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    place: Place,
}

impl Store {
    /// Opens the store at `path`.
    ///
    /// # Errors
    /// The reason why that directory cannot be used.
    pub fn open(path: &Path, if_absent: IfAbsent) -> Result<Store, StoreError> {
        Ok(Store { place: place::open(path, if_absent)? })
    }

    fn is_own(&self) -> bool {
        self.place.owner == geteuid().as_raw()
    }

    /// Returns the entry for `source`, if there is one, it and its source are unchanged since it was made, and
    /// its bytes are those of the program. An entry of which the file itself shows that it is outdated is removed. What
    /// the process has in its memory removes none: other processes use it.
    fn look_up(
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

    /// Returns whether entries in this store can be for all users: it is root's, and the caller is root.
    fn may_publish(&self) -> bool {
        self.is_own() && geteuid().is_root()
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

    /// Reads a record; returns it with its file.
    fn read(&self, name: &str) -> Option<(Record, File)> {
        let (json, file) = self.place.read(name, MAX_RECORD)?;
        Some((Record::parse(&json).ok()?, file))
    }

    /// Checks that this user may add an entry of `bytes`, and that there is memory for it.
    fn may_make(&self, bytes: u64, budget: &Budget) -> Result<(), StoreError> {
        if !self.is_own() {
            return Err(StoreError::hostile(&self.place.path, "belongs to root, and only root adds to it"));
        }
        budget.lack(Cost::copy(bytes)).map_or(Ok(()), |reason| Err(StoreError::Memory(reason)))
    }

    /// Makes the entry that `look_up` did not find.
    fn make(
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

/// Returns whether the object is at an address that hardly any other process has. That is an address other
/// than these: the start of a huge page, where the kernel puts large shared objects; one that is congruent
/// to the file offset; and the base to which executables are moved for the store.
fn is_by_chance(object: &Object, page: PageSize) -> bool {
    let within = page.bytes() - 1;
    let sizes = Sizes { base: base_page(), huge: Some(page), folios: Vec::new() };
    let moved = || shared_base(&object.headers, &object.path, &sizes);
    if object.executable && moved().is_some_and(|base| base.is_of(object.bias)) {
        return false;
    }
    let read_only = object.headers.segments.iter().filter(|s| !s.prot.write);
    let mut meant = read_only.map(|s| s.offset.wrapping_sub(s.vaddr)).chain([0]);
    meant.all(|skew| (object.bias ^ skew) & within != 0)
}

/// Returns whether the process has written to pages that should be the file's: a copy for others must not
/// hold such bytes, and this process must not get the file's bytes instead.
fn is_written(query: &StoreQuery) -> bool {
    let written = |range: &Range| pagemap::written_bytes(query.pid.cast_signed(), *range);
    match query.rodata.iter().map(written).sum::<io::Result<u64>>() {
        Ok(bytes) => bytes > 0,
        // Before Linux 6.7; what smaps does not show counts as written.
        Err(_) => Process::of(query.pid.cast_signed()).smaps().map_or(true, |usage| {
            let inside = |r: Range| query.rodata.iter().any(|range| range.intersect(r).is_some());
            usage.iter().any(|u| u.anonymous > 0 && inside(u.mapping.range))
        }),
    }
}
