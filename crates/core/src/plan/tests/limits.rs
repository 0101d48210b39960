// SPDX-License-Identifier: Apache-2.0
//! Plans under a limit of a control group.

use super::*;
use crate::snapshot::{MemoryLimit, Stored};

/// The program may need all that a control group's limit leaves: only what costs nothing is lifted.
#[test]
fn under_a_limit_of_a_control_group() {
    let limit = MemoryLimit {
        source: "/sys/fs/cgroup/u/memory.max".into(),
        bytes: 80 * MB,
        left: 60 * MB,
        counts_pools: false,
    };
    let mut snapshot = program(TEXT);
    snapshot.machine.memory_limit = Some(limit.clone());
    let reason = refused(&snapshot, &on(&[Backing::Thp]));
    assert_eq!(reason, Reason::GroupLimit { limit: limit.clone(), spare: 0, need: 10 * MB });
    assert_eq!(reason.hint().unwrap(), "hugelift run --spare 10M, if the program can do without it");
    // Pages of the pool are not charged to it, unless the cgroup mount says so. THP as a fallback is.
    let both = on(&[Backing::Hugetlb, Backing::Thp]);
    assert_eq!(spans(&plan(&snapshot, &both)), [(TEXT, vec![Backing::Hugetlb])]);
    let mut counting = snapshot.clone();
    counting.machine.memory_limit = Some(MemoryLimit { counts_pools: true, ..limit.clone() });
    assert!(matches!(refused(&counting, &on(&[Backing::Hugetlb])), Reason::GroupLimit { .. }));
    // The store's copy exists already.
    snapshot.stored.copies = vec![StoredCopy { range: TEXT, entry: 0, offset: 2 * MB }];
    assert_eq!(spans(&plan(&snapshot, &Policy::default())), [(TEXT, vec![Backing::Shared])]);
    // `--spare` allows it. Where half of what is left is too little, the hint says so.
    let spare = Policy { spare: 10 * MB, ..on(&[Backing::Thp]) };
    snapshot.stored = Stored::default();
    assert_eq!(spans(&plan(&snapshot, &spare)), [(TEXT, vec![Backing::Thp])]);
    snapshot.machine.memory_limit = Some(MemoryLimit { left: 18 * MB, ..limit });
    let hint = refused(&snapshot, &spare).hint().unwrap();
    assert_eq!(hint, "echo 84M > /sys/fs/cgroup/u/memory.max, then hugelift run --spare 10M");
}

/// Memory that is advised in place grows when it is touched; data on pages of the pool is copied for
/// each child.
#[test]
fn writable_parts_under_a_limit_of_a_control_group() {
    let mut snapshot = writable();
    let source = "/sys/fs/cgroup/u/memory.high".into();
    snapshot.machine.memory_limit =
        Some(MemoryLimit { source, bytes: 1 << 30, left: 1 << 30, counts_pools: false });
    for backings in [&[Backing::Thp][..], &[Backing::Hugetlb, Backing::Thp]] {
        let plan = plan(&snapshot, &data_on(backings));
        assert!(plan.spans.is_empty(), "{backings:?}: {:?}", plan.spans);
    }
    let spare = Policy { spare: 6 * MB, ..data_on(&[Backing::Thp]) };
    let parts: Vec<Part> = plan(&snapshot, &spare).spans.iter().map(|s| s.part).collect();
    assert_eq!(parts, [Part::Data], "4 of the 6 MB");
}
