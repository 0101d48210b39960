// SPDX-License-Identifier: Apache-2.0
//! The operations that are timed.

use crate::memory::Pages;

/// An operation that is timed. Its destination was written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// memcpy(3) from this source to memory on these pages.
    Copy(Source, Pages),
    /// memset(3) of memory on these pages.
    Set(Pages),
    /// Reading alone, which shows from which cache the bytes come.
    Read(Source),
}

/// The source of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Memory never written, that would get these pages.
    Never(Pages),
    /// Written memory on these pages.
    Written(Pages),
    /// Memory never written, but read while `use_zero_page` was 0: transparent huge pages full of zeros.
    Unshared,
}

impl Kind {
    /// One side of the trap. It differs from [`Kind::HUGE_ZERO`] in the zero page that is read, and in
    /// nothing else.
    pub const SMALL_ZERO: Kind = Kind::Copy(Source::Never(Pages::Small), Pages::Thp);
    /// The other side of the trap.
    pub const HUGE_ZERO: Kind = Kind::Copy(Source::Never(Pages::Thp), Pages::Thp);
    /// The copy that the literature compares with [`Kind::HUGE_ZERO`]: huge pages off for both blocks.
    pub const NEVER_OFF: Kind = Kind::Copy(Source::Never(Pages::Small), Pages::Small);
    /// A written source, huge pages off and on.
    pub const WRITTEN: [Kind; 2] = [
        Kind::Copy(Source::Written(Pages::Small), Pages::Small),
        Kind::Copy(Source::Written(Pages::Thp), Pages::Thp),
    ];
    /// memset(3), huge pages off and on.
    pub const SET: [Kind; 2] = [Kind::Set(Pages::Small), Kind::Set(Pages::Thp)];
    /// All kinds.
    pub const ALL: [Kind; 11] = [
        Kind::NEVER_OFF,
        Kind::HUGE_ZERO,
        Kind::SMALL_ZERO,
        Kind::WRITTEN[0],
        Kind::WRITTEN[1],
        // Only root can make this source.
        Kind::Copy(Source::Unshared, Pages::Thp),
        Kind::SET[0],
        Kind::SET[1],
        Kind::Read(Source::Never(Pages::Small)),
        Kind::Read(Source::Never(Pages::Thp)),
        Kind::Read(Source::Written(Pages::Thp)),
    ];
}
