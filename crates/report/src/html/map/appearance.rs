// SPDX-License-Identifier: Apache-2.0
//! How bytes appearance: the colour tells the kind (huge by backing; not huge and why), a
//! pattern tells reasons of one kind from each other, so that colour is never all.

use hugelift_core::policy::Backing;
use hugelift_core::report::SkipReport;
use std::fmt::Write as _;

/// The fill of a rectangle, and the entry of the legend that it belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Appearance {
    /// Order in the legend: what is huge first, what nobody can change last.
    rank: u8,
    /// Variable of [`super::super::page`]'s palette, without its dashes.
    colour: &'static str,
    texture: Texture,
    /// In words, for the legend.
    pub label: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Texture {
    Plain,
    Stripes,
    Dots,
    Crosses,
}

use Texture::{Crosses, Dots, Plain, Stripes};

impl Appearance {
    /// On huge pages; `all` of the mapping, or an unknown part of it.
    pub fn huge(backing: Backing, all: bool) -> Appearance {
        let (rank, colour) = match backing {
            Backing::Thp => (0, "thp"),
            Backing::Hugetlb => (1, "hugetlb"),
            Backing::Pagecache => (2, "pagecache"),
            Backing::Shared => (3, "shared"),
        };
        let (texture, label) = if all {
            (Plain, format!("huge: {backing}"))
        } else {
            (Stripes, format!("partly huge: {backing}"))
        };
        Appearance { rank: rank + if all { 0 } else { 4 }, colour, texture, label }
    }

    /// Not on huge pages, for this reason.
    pub fn skipped(skip: &SkipReport) -> Appearance {
        let (rank, colour, texture) = match skip.reason {
            "not-lifted" => (10, "could", Plain),
            "pool-short" => (20, "lack", Plain),
            "thp-off" => (21, "lack", Stripes),
            "memory-limit" | "memory-short" => (22, "lack", Dots),
            "failed" | "fragmented" => (23, "lack", Crosses),
            "not-aligned" => (30, "edge", Plain),
            "neighbour-protection" => (31, "edge", Stripes),
            "too-small" => (32, "edge", Dots),
            "part-not-asked" => (40, "left", Plain),
            "excluded" => (41, "left", Stripes),
            _ if skip.why.is_remediable() => (24, "lack", Plain),
            _ => (42, "left", Dots),
        };
        Appearance { rank, colour, texture, label: skip.reason.replace('-', " ") }
    }

    /// The class of its rectangles; also the name of its pattern.
    pub fn class(&self) -> String {
        let texture = match self.texture {
            Plain => return format!("c-{}", self.colour),
            Stripes => "stripes",
            Dots => "dots",
            Crosses => "crosses",
        };
        format!("c-{}-{texture}", self.colour)
    }

    /// The rule that fills the class, and the pattern that it names.
    pub fn style(&self) -> (String, String) {
        let (class, colour) = (self.class(), self.colour);
        let fill = format!("var(--{colour})");
        let marks = match self.texture {
            Plain => return (format!(".{class} {{ fill: {fill}; }}\n"), String::new()),
            Stripes => "<path d=\"M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5\"/>",
            Dots => "<path d=\"M1.5 1.5h0 M4.5 4.5h0\"/>",
            Crosses => "<path d=\"M0 3H6 M3 0V6\"/>",
        };
        let mut pattern = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            pattern,
            "<pattern id=\"{class}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"6\" height=\"6\" style=\"fill:{fill}\"/><g class=\"marks\">{marks}</g></pattern>"
        );
        (format!(".{class} {{ fill: url(#{class}); }}\n"), pattern)
    }
}
