// SPDX-License-Identifier: Apache-2.0
//! Plans where copies wait, or where the store has them: all of an object, or the code that other processes use.

use super::*;

/// What the store has is mapped, each piece from its entry. The rest is copied, now or later.
#[test]
fn what_the_store_has_is_mapped_and_the_rest_is_copied() {
    let text = r(MB * 4, MB * 36);
    let backings = vec![Backing::Pagecache, Backing::Shared, Backing::Thp];
    let policy = Policy { backings, copies: Copies::Later, ..Policy::default() };
    let mut partly = program(text);
    let middle = Range { start: Addr(text.start.0 + 2 * MB), end: Addr(text.start.0 + 6 * MB) };
    let copy = |from: u64, to: u64, entry| {
        let range = Range { start: Addr(middle.start.0 + from), end: Addr(middle.start.0 + to) };
        StoredCopy { range, entry, offset: 2 * MB }
    };
    partly.stored.copies = vec![copy(0, 2 * MB, 0), copy(2 * MB, 4 * MB, 1)];
    let result = plan(&partly, &policy);
    let of_store = partly.stored.copies.iter().map(|copy| (copy.range, vec![Backing::Shared]));
    assert_eq!(spans(&result), of_store.clone().collect::<Vec<_>>());
    let rest = text.minus(middle);
    let later = rest.iter().map(|range| (*range, Reason::CopiedLater));
    assert_eq!(skips(&result), later.collect::<Vec<_>>());
    let all = plan(&partly, &Policy { copies: Copies::All, ..policy });
    let first = |(range, backings): (Range, Vec<Backing>)| (range, backings[0]);
    let [before, behind] = rest[..] else { panic!("{rest:?}") };
    let ranges = [before, partly.stored.copies[0].range, partly.stored.copies[1].range, behind];
    let backings = [Backing::Thp, Backing::Shared, Backing::Shared, Backing::Thp];
    let expected: Vec<_> = ranges.into_iter().zip(backings).collect();
    assert_eq!(spans(&all).into_iter().map(first).collect::<Vec<_>>(), expected);
}

/// What is not huge yet is copied later; what is huge already is mapped now.
#[test]
fn what_would_be_copied_is_left_for_later() {
    let text = r(MB * 4, MB * 36);
    let backings = vec![Backing::Pagecache, Backing::Shared, Backing::Thp];
    let policy = Policy { backings, copies: Copies::Later, ..Policy::default() };
    let result = plan(&program(text), &policy);
    assert_eq!((spans(&result), skips(&result)), (vec![], vec![(text, Reason::CopiedLater)]));
    let mut cached = program(text);
    cached.mappings[0].offset = 0;
    cached.cached = vec![text];
    assert_eq!(spans(&plan(&cached, &policy)), [(text, vec![Backing::Pagecache])]);
    let mut stocked = program(text);
    stocked.stored.copies = vec![StoredCopy { range: text, entry: 0, offset: 2 * MB }];
    assert_eq!(spans(&plan(&stocked, &policy)), [(text, vec![Backing::Shared])]);
    // A kernel that has no transparent huge pages for anonymous memory may have them for the store.
    let mut never = program(text);
    never.machine.thp_off = Some(ThpOff::Never);
    assert_eq!(skips(&plan(&never, &policy)), [(text, Reason::CopiedLater)]);
    // Without a backing that copies, that is not the reason.
    let result = plan(&program(text), &Policy { backings: vec![Backing::Pagecache], ..policy });
    assert!(
        result.spans.is_empty() && result.skips.iter().all(|s| s.reason == Reason::NotPrimed),
        "{result:?}"
    );
}
