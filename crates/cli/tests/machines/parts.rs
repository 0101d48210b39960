// SPDX-License-Identifier: Apache-2.0
//! Suite: all parts of a program, also those that it writes to.

use crate::grow::grow;
use crate::held::Held;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks};
use crate::start::{bare, run};
use std::path::Path;

/// Text and read-only data are copied; bss becomes huge as it is touched.
fn all_of(kind: &str) {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow(kind, page);
    let none: &[(&str, &Path)] = &[];
    let held = Held::lifted(&["--backing", "thp", "--parts", "all"], &big.path, &[], none);
    let look = held.look();
    look.assert_lifted(page, From::Thp);
    look.assert_intact();
    let usages = held.smaps();
    let (start, bytes) = held.place("bss");
    let whole = ((start + bytes) / page * page).saturating_sub(start.next_multiple_of(page));
    let inside = usages.iter().filter(|u| {
        u.mapping.range.start.0 < start + bytes && start < u.mapping.range.end.0 && u.mapping.prot.write
    });
    let huge: u64 = inside.map(|u| u.anon_huge).sum();
    println!("parts: {kind}: {} MB of bss huge of {} MB", huge >> 20, whole >> 20);
    assert!(whole >= 2 * page && huge >= whole, "{kind}: {huge} of {whole}");
    held.finish();
    // It runs bare as well; 2 is the status of an empty stdin.
    assert_eq!(run(&mut bare::<&str>(&big.path, &[])).status.code(), Some(2));
}

#[test]
fn all_of_a_static_program() {
    all_of("vm_parts.static");
}

#[test]
fn all_of_a_dynamic_program() {
    all_of("vm_parts.dynamic");
}

#[test]
fn all_of_a_pie() {
    all_of("vm_parts.pie");
}
