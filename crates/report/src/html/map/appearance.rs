// SPDX-License-Identifier: Apache-2.0
//! How bytes are drawn: the colour shows the kind (huge, by backing; not huge, by kind of reason), and
//! a pattern distinguishes the reasons of one kind, so that colour is not the only sign.

use hugelift_core::policy::Backing;
use hugelift_core::report::SkipReport;
use std::fmt::Write as _;

/// The fill of a rectangle, and its entry in the legend.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Appearance {
    /// Order in the legend: what is huge first, what cannot be changed last.
    rank: u8,
    /// Variable of the palette of `page`, without its dashes.
    colour: &'static str,
    texture: Texture,
    /// The words in the legend.
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
    /// Returns the appearance of huge pages. `all`: the whole mapping is huge, not an unknown part of it.
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

    /// Returns the appearance of what is not huge for this reason.
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

    /// Returns the class of its rectangles, which is also the name of its pattern.
    pub fn class(&self) -> String {
        let texture = match self.texture {
            Plain => return format!("c-{}", self.colour),
            Stripes => "stripes",
            Dots => "dots",
            Crosses => "crosses",
        };
        format!("c-{}-{texture}", self.colour)
    }

    /// Returns the CSS rule that fills the class, and the pattern that the rule names.
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
