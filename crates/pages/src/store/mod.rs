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
//! times only if the next change was sure to move them when the file was copied ([`record::Evidence`]); of any other
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
mod lookup;
mod names;
mod opened;
mod place;
mod public;
mod source;

pub use admin::{Entry, Freed, State};
pub use error::StoreError;
pub use lookup::Moment;
pub use names::{MACHINE_WIDE, VARIABLE};
pub use opened::Store;
pub use place::{IfAbsent, own_path};

use hugelift_core::addr::{PageSize, Range, without};
use hugelift_core::budget::{Budget, Cost};
use hugelift_core::plan::{is_nearly_all, shareable};
use hugelift_core::policy::{Backing, Copies, Policy};
use hugelift_core::record::{self, record_name};
use hugelift_core::relocate::base::{Sizes, shared_base};
use hugelift_core::skip::Reason;
use hugelift_core::snapshot::{NotStored, Object, Part, Snapshot, Stored, StoredCopy};
use hugelift_linux::machine::{base_page, habits};
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use lookup::{Found, StoreQuery, lacking};
use public::AccessCheck;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

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

/// Looks up the objects of process `pid` in the store, and copies into it the objects that it lacks, if the policy allows
/// copies now. Every failure is only a reason why there is no copy.
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
    let own = match policy.copies != Copies::Later {
        true => own_store(budget.lack(Cost::copy(page.bytes()))),
        false => own_path().and_then(|path| Store::open(&path, IfAbsent::Leave)),
    };
    let mut stores = StoreSet { machine: machine_wide(&own), own, access: AccessCheck::default() };
    let files = MappedFiles::of(Process::of(pid.cast_signed()));
    let node = if policy.per_node { habits::nearest(Process::of(pid.cast_signed())) } else { None };
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
        let copied: Vec<Range> = ranges.iter().copied().filter(|range| policy.copies.allow(*range)).collect();
        let (rodata, copied) = (&rodata, &copied);
        let query = StoreQuery { pid, files, object, ranges, copied, rodata, page, moment, mappings, node };
        let began = Instant::now();
        let (found, lack) = stores.get_nearest(&query, &mut budget);
        tracing::debug!(object = ?object.path, ?found, ?lack, elapsed = ?began.elapsed(), "store");
        if let Some(error) = lack.filter(|_| is_demanded(policy)) {
            let lack = |range: Range| (range, NotStored::from(&error));
            offer.stored.lacks.extend(lacking(ranges, &found).into_iter().map(lack));
        }
        for Found { file, copies } in found {
            let entry = offer.files.len();
            offer.files.push(file);
            let copy = |(range, offset)| StoredCopy { range, entry, offset };
            offer.stored.copies.extend(copies.into_iter().map(copy));
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
        let copy = |range: Range| StoredCopy { range, entry: index, offset: range.start.0 };
        let record = own.as_ref().ok().zip(name()).and_then(|(store, name)| store.read(&name));
        let held = record.map(|(record, _)| record.held(range, object.bias)).unwrap_or_default();
        let held: Vec<Range> = held.iter().map(|held| held.range).collect();
        stored.copies.extend(held.iter().copied().map(copy));
        for range in without(vec![range], held) {
            let lack = match &own {
                Ok(_) | Err(StoreError::Missing { .. }) if !policy.copies.allow(range) => StoreError::Later,
                Ok(_) | Err(StoreError::Missing { .. }) => match budget.take(Cost::copy(range.len())) {
                    Ok(()) => {
                        stored.copies.push(copy(range));
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

/// The stores that a user can use.
struct StoreSet {
    own: Result<Store, StoreError>,
    machine: Option<Store>,
    /// It serves all objects of one process: most are in the same few directories.
    access: AccessCheck,
}

impl StoreSet {
    /// Returns the entries of the query's node, if it has one. What that node cannot have comes from the entries that are
    /// for all nodes. Those are not mapped in place of copies that may still be made on the node later.
    fn get_nearest(&mut self, query: &StoreQuery, budget: &mut Budget) -> (Vec<Found>, Option<StoreError>) {
        let (mut found, lack) = self.get(query, budget);
        match lack {
            Some(why) if query.node.is_some() && !matches!(why, StoreError::Later) => {
                tracing::debug!(%why, node = ?query.node, object = ?query.object.path, "no copy on the node");
                let (ranges, copied) = (lacking(query.ranges, &found), lacking(query.copied, &found));
                let common = StoreQuery { ranges: &ranges, copied: &copied, node: None, ..*query };
                let (others, lack) = self.get(&common, budget);
                found.extend(others);
                (found, lack)
            }
            lack => (found, lack),
        }
    }

    /// Returns the entries that a process can use, and why there are none of the rest, if there is a rest.
    fn get(&mut self, query: &StoreQuery, budget: &mut Budget) -> (Vec<Found>, Option<StoreError>) {
        let mut found = Vec::new();
        let lack = self.find(query, budget, &mut found).err();
        (found, lack)
    }

    fn find(
        &mut self,
        query: &StoreQuery,
        budget: &mut Budget,
        found: &mut Vec<Found>,
    ) -> Result<(), StoreError> {
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
            let left = lacking(query.ranges, found);
            found.extend(store.look_up(&StoreQuery { ranges: &left, ..*query }, &source, access, None));
        }
        let (left, copied) = (lacking(query.ranges, found), lacking(query.copied, found));
        match (own, &*opened) {
            _ if left.is_empty() => Ok(()),
            (Some(own), _) if !copied.is_empty() => {
                let query = StoreQuery { ranges: &left, copied: &copied, ..*query };
                found.extend(own.make(&query, &source, budget, access)?);
                Ok(())
            }
            (Some(_), _) => Err(StoreError::Later),
            (None, Err(error)) => Err(error.again()),
            (None, Ok(_)) => Err(StoreError::NoPlace),
        }
    }
}

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
