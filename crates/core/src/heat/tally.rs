// SPDX-License-Identifier: Apache-2.0
//! Samples by place and page.

use super::places::{Place, Places};
use super::{HOT_PERCENT, ObjectHeat, PagesInUse, SpanHeat};
use crate::addr::{Addr, PageSize, Range};
use crate::maps::FileId;
use crate::snapshot::{Part, Snapshot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// An object by what stays the same in all snapshots of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    path: PathBuf,
    file: FileId,
    bias: u64,
    /// Numbers of the huge pages that its code lies in.
    huge_pages: BTreeSet<u64>,
}

/// Samples of one process. Its mappings may change meanwhile: each sample belongs to what was mapped at its address when
/// it was counted.
#[derive(Clone, Debug)]
pub struct Tally {
    base_page: PageSize,
    huge_page: PageSize,
    known: Vec<Known>,
    /// For each object of the newest snapshot, its index in `known`.
    index: Vec<usize>,
    places: Places,
    /// The samples of each page, by its number.
    counts: HashMap<(Place, u64), u64>,
    /// Samples in pages that the newest snapshot did not have, by the number of the page.
    unknown: HashMap<u64, u64>,
}

impl Tally {
    /// Begins with no samples.
    pub fn new(snapshot: &Snapshot) -> Tally {
        let machine = &snapshot.machine;
        let mut tally = Tally {
            base_page: machine.base_page,
            huge_page: machine.thp_page.unwrap_or(PageSize::MB2),
            known: Vec::new(),
            index: Vec::new(),
            places: Places::new(snapshot),
            counts: HashMap::new(),
            unknown: HashMap::new(),
        };
        tally.learn(snapshot);
        tally
    }

    /// Counts a sample. One at an address that is not known yet waits for the next snapshot.
    pub fn add(&mut self, address: u64) {
        let page = address / self.base_page.bytes();
        match self.place(address) {
            Some(place) => *self.counts.entry((place, page)).or_default() += 1,
            None => *self.unknown.entry(page).or_default() += 1,
        }
    }

    /// Returns whether samples wait for a snapshot.
    pub fn lacks_places(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Takes a newer snapshot of the process, and looks up the samples that wait for it. What is not in it either was
    /// unmapped meanwhile.
    pub fn learn(&mut self, snapshot: &Snapshot) {
        self.places = Places::new(snapshot);
        self.index = snapshot
            .objects
            .iter()
            .map(|object| {
                let is_same = |known: &Known| {
                    (&known.path, known.file, known.bias) == (&object.path, object.file, object.bias)
                };
                self.known.iter().position(is_same).unwrap_or_else(|| {
                    let (path, file, bias) = (object.path.clone(), object.file, object.bias);
                    self.known.push(Known { path, file, bias, huge_pages: BTreeSet::new() });
                    self.known.len() - 1
                })
            })
            .collect();
        for extent in snapshot.extents().iter().filter(|extent| extent.part == Part::Text) {
            let Range { start, end } = extent.range;
            let size = self.huge_page.bytes();
            self.known[self.index[extent.object]].huge_pages.extend(start.0 / size..end.0.div_ceil(size));
        }
        for (page, count) in std::mem::take(&mut self.unknown) {
            let address = page * self.base_page.bytes();
            let place = self.place(address).unwrap_or_else(|| self.places.was_at(Addr(address)));
            *self.counts.entry((place, page)).or_default() += count;
        }
    }

    fn place(&self, address: u64) -> Option<Place> {
        Some(match self.places.at(Addr(address))? {
            Place::Object(object) => Place::Object(*self.index.get(object)?),
            place => place,
        })
    }

    /// Returns the size of the pages and of the huge pages that are counted.
    pub fn page_sizes(&self) -> (PageSize, PageSize) {
        (self.base_page, self.huge_page)
    }

    /// Returns the samples at `place`. Those that still wait for a snapshot are of another place.
    pub fn samples(&self, place: Place) -> u64 {
        let waiting = if place == Place::Other { self.unknown.values().sum() } else { 0 };
        self.counts.iter().filter(|((at, _), _)| *at == place).map(|(_, count)| count).sum::<u64>() + waiting
    }

    /// Returns the samples in code of objects.
    pub fn in_objects(&self) -> u64 {
        let is_object = |place: &Place| matches!(place, Place::Object(_));
        self.counts.iter().filter(|((place, _), _)| is_object(place)).map(|(_, count)| count).sum()
    }

    /// Returns how many pages are in use in all places.
    pub fn pages(&self) -> PagesInUse {
        PagesInUse::new(self.counts.values().chain(self.unknown.values()).copied())
    }

    /// Returns the objects with samples, those with the most first.
    pub fn objects(&self) -> Vec<ObjectHeat> {
        let mut pages: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for ((place, page), count) in &self.counts {
            if let Place::Object(object) = place {
                pages.entry(*object).or_default().push((*page, *count));
            }
        }
        let mut all: Vec<ObjectHeat> =
            pages.iter().map(|(object, pages)| self.object(*object, pages)).collect();
        all.sort_by(|a, b| (b.samples, &a.path).cmp(&(a.samples, &b.path)));
        all
    }

    fn object(&self, object: usize, pages: &[(u64, u64)]) -> ObjectHeat {
        let known = &self.known[object];
        let mut spans: BTreeMap<u64, u64> = BTreeMap::new();
        for (page, count) in pages {
            let start = Addr(page * self.base_page.bytes()).align_down(self.huge_page);
            *spans.entry(start.0).or_default() += count;
        }
        let samples = pages.iter().map(|(_, count)| count).sum();
        ObjectHeat {
            path: known.path.clone().into(),
            samples,
            pages: PagesInUse::new(pages.iter().map(|(_, count)| *count)),
            huge_pages: known.huge_pages.len() as u64,
            hot_huge_pages: hot(spans.values().copied().collect(), samples),
            spans: spans.into_iter().map(|(start, samples)| SpanHeat { start, samples }).collect(),
        }
    }
}

/// Returns the fewest of these counts that hold [`HOT_PERCENT`] of `all`.
fn hot(mut counts: Vec<u64>, all: u64) -> u64 {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut held = 0;
    let is_short = |count: &u64| {
        let is_short = u128::from(held) * 100 < u128::from(all) * u128::from(HOT_PERCENT);
        held += count;
        is_short
    };
    counts.iter().copied().take_while(is_short).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::{Mapping, parse_maps};
    use crate::plan::tests::program;
    use proptest::prelude::*;

    const WHOLE: Range = Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) };

    fn text(snapshot: &Snapshot) -> Range {
        snapshot.extents().into_iter().find(|e| e.part == Part::Text).expect("text").range
    }

    #[test]
    fn issue_31_hot_huge_pages() {
        assert_eq!(hot(vec![], 0), 0);
        assert_eq!(hot(vec![100], 100), 1);
        assert_eq!(hot(vec![1, 98, 1], 100), 2);
        assert_eq!(hot(vec![1, 99], 100), 1);
        assert_eq!(hot(vec![25; 4], 100), 4);
    }

    #[test]
    fn issue_31_samples_find_their_pages() {
        let snapshot = program(WHOLE);
        let text = text(&snapshot);
        let mut tally = Tally::new(&snapshot);
        for i in 0..10 {
            tally.add(text.start.0 + i);
            tally.add(text.start.0 + 4096 + i);
        }
        let objects = tally.objects();
        assert_eq!((objects.len(), objects[0].samples, objects[0].pages.seen), (1, 20, 2));
        assert_eq!((objects[0].hot_huge_pages, objects[0].spans.len()), (1, 1));
        assert!(objects[0].huge_pages >= 1 && tally.pages().seen == 2);
        assert!(!tally.lacks_places());
    }

    /// A sample in a mapping that is newer than the snapshot waits for the next one; one in nothing is not forgotten.
    #[test]
    fn issue_31_an_unknown_address_waits_for_the_next_snapshot() {
        let mut snapshot = program(WHOLE);
        let mut tally = Tally::new(&snapshot);
        tally.add(0x7f00_0000_0010);
        tally.add(0x7f00_0000_0020);
        tally.add(0x1000);
        assert!(tally.lacks_places() && tally.objects().is_empty());
        assert_eq!((tally.samples(Place::Other), tally.pages().seen), (3, 2));
        let jit: Vec<Mapping> =
            parse_maps(b"7f0000000000-7f0000021000 rwxp 00000000 00:00 0 \n").expect("a mapping");
        snapshot.mappings.extend(jit);
        tally.learn(&snapshot);
        assert_eq!((tally.samples(Place::Jit), tally.samples(Place::Other)), (2, 1));
        assert!(!tally.lacks_places());
    }

    /// A process that executes another program has both programs' objects.
    #[test]
    fn issue_31_a_second_program_is_a_second_object() {
        let first = program(WHOLE);
        let mut second = program(WHOLE);
        second.objects[0].path = "/bin/second".into();
        let mut tally = Tally::new(&first);
        let address = text(&first).start.0;
        tally.add(address);
        tally.learn(&second);
        tally.add(address);
        tally.learn(&second);
        tally.add(address);
        let samples: Vec<u64> = tally.objects().iter().map(|object| object.samples).collect();
        assert_eq!(samples, [2, 1]);
    }

    proptest! {
        #[test]
        fn issue_31_no_sample_is_lost(addresses in prop::collection::vec(prop_oneof![any::<u64>(), 0x40_0000u64..0xd0_0000], 0..200), again: bool) {
            let snapshot = program(WHOLE);
            let mut tally = Tally::new(&snapshot);
            addresses.iter().for_each(|address| tally.add(*address));
            if again {
                tally.learn(&snapshot);
            }
            let objects = tally.objects();
            let in_objects: u64 = objects.iter().map(|object| object.samples).sum();
            let elsewhere = tally.samples(Place::Jit) + tally.samples(Place::Other);
            prop_assert_eq!(in_objects + elsewhere, addresses.len() as u64);
            for object in objects {
                prop_assert_eq!(object.spans.iter().map(|span| span.samples).sum::<u64>(), object.samples);
                prop_assert!((1..=object.spans.len() as u64).contains(&object.hot_huge_pages));
                prop_assert!(object.spans.len() as u64 <= object.huge_pages);
            }
        }
    }
}
