// SPDX-License-Identifier: Apache-2.0
//! Plans of what a program writes to, and of memory with attributes.

use super::*;

#[test]
fn data_is_copied_and_anonymous_memory_stays_in_place() {
    let plan = plan(&writable(), &data_on(&[Backing::Thp]));
    let found: Vec<_> = plan.spans.iter().map(|s| (s.part, s.range, s.attempts[0].in_place)).collect();
    let expected = [
        (Part::Data, r(16 * MB, 20 * MB), false),
        (Part::Bss, r(20 * MB, 26 * MB), true),
        (Part::Heap, r(26 * MB, 30 * MB), true),
    ];
    assert_eq!(found, expected);
    assert!(plan.spans[1..].iter().all(|s| s.attempts[0].steps.len() == 2));
}

#[test]
fn advice_costs_no_memory_and_copies_do() {
    let mut snapshot = writable();
    snapshot.machine.memory_left = MB;
    let plan = plan(&snapshot, &data_on(&[Backing::Thp]));
    assert_eq!(plan.spans.iter().map(|s| s.part).collect::<Vec<_>>(), [Part::Bss, Part::Heap]);
    let limit = Reason::MemoryLimit { left: MB, need: 4 * MB };
    assert!(skips(&plan).contains(&(r(16 * MB, 20 * MB), limit)), "{:?}", plan.skips);
}

#[test]
fn pool_pages_are_for_data_and_not_for_the_heap() {
    let plan = plan(&writable(), &data_on(&[Backing::Hugetlb]));
    assert_eq!(plan.spans.iter().map(|s| s.part).collect::<Vec<_>>(), [Part::Data, Part::Bss]);
    assert!(plan.spans.iter().all(|s| !s.attempts[0].in_place));
    let refused = Reason::NotFor(Backing::Hugetlb, Part::Heap);
    assert!(skips(&plan).contains(&(r(26 * MB, 30 * MB), refused)), "{:?}", plan.skips);
}

#[test]
fn relro_is_lifted_as_it_is_protected_now() {
    for prot in [Prot::R, Prot::RW] {
        let mut snapshot = writable();
        snapshot.objects[0].headers.relro =
            Some(elf::Stretch { offset: 16 * MB, vaddr: 16 * MB, size: 2 * MB });
        snapshot.mappings[1] = mapping(r(16 * MB, 18 * MB), prot);
        snapshot.mappings.insert(2, mapping(r(18 * MB, 20 * MB), Prot::RW));
        let plan = plan(&snapshot, &data_on(&[Backing::Thp]));
        let first = &plan.spans[0];
        assert_eq!((first.part, first.range, first.prot), (Part::Relro, r(16 * MB, 18 * MB), prot));
        // Data behind it is another part, even where both are writable.
        assert_eq!((plan.spans[1].part, plan.spans[1].range), (Part::Data, r(18 * MB, 20 * MB)));
    }
}

#[test]
fn special_memory_is_not_copied() {
    let mut snapshot = writable();
    let (data, bss, heap) = (r(16 * MB, 20 * MB), r(20 * MB, 26 * MB), r(26 * MB, 31 * MB));
    snapshot.special =
        vec![(data, Attribute::Locked), (bss, Attribute::WipedOnFork), (heap, Attribute::NoHuge)];
    let plan = plan(&snapshot, &data_on(&[Backing::Thp]));
    assert_eq!(plan.spans.iter().map(|s| s.part).collect::<Vec<_>>(), [Part::Bss]);
    for (range, attribute) in [(data, Attribute::Locked), (heap, Attribute::NoHuge)] {
        assert!(skips(&plan).contains(&(range, Reason::Special(attribute))), "{:?}", plan.skips);
    }
}
