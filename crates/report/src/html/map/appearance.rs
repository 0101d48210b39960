// SPDX-License-Identifier: Apache-2.0
//! How bytes are drawn: the colour shows the kind (huge, by backing; not huge, by kind of reason). Fill and texture
//! alone distinguish them as well, so that colour is not the only sign: what is huge is solid, what could be is
//! hollow.

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
    fill: Fill,
    texture: Texture,
    /// The words in the legend.
    pub label: String,
}

/// What the marks of a texture are drawn on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fill {
    /// Marks of paper on the colour.
    Solid,
    /// Broad marks of the colour on paper: about half of it.
    Half,
    /// Fine marks of the colour on paper, with an outline.
    Hollow,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Texture {
    Plain,
    Rising,
    Falling,
    Upright,
    Level,
    Grid,
    Crosses,
    Dots,
    Rings,
}

use Fill::{Half, Hollow, Solid};
use Texture::{Crosses, Dots, Falling, Grid, Level, Plain, Rings, Rising, Upright};

impl Texture {
    /// Returns its name, and the path of its marks in a square of 6 pixels.
    fn marks(self) -> (&'static str, &'static str) {
        match self {
            Plain => ("plain", ""),
            Rising => ("rising", "M-1 7L7-1M-1 1L1-1M5 7L7 5"),
            Falling => ("falling", "M-1-1L7 7M5-1L7 1M-1 5L1 7"),
            Upright => ("upright", "M3 0V6"),
            Level => ("level", "M0 3H6"),
            Grid => ("grid", "M0 3H6M3 0V6"),
            Crosses => ("crosses", "M1.5 1.5L4.5 4.5M4.5 1.5L1.5 4.5"),
            Dots => ("dots", "M1.5 1.5h0M4.5 4.5h0"),
            Rings => ("rings", "M1.2 3a1.8 1.8 0 1 0 3.6 0a1.8 1.8 0 1 0-3.6 0"),
        }
    }
}

impl Appearance {
    /// Returns the appearance of huge pages. `all`: the whole mapping is huge, not an unknown part of it.
    pub fn huge(backing: Backing, all: bool) -> Appearance {
        let (rank, colour, texture) = match backing {
            Backing::Thp => (0, "thp", Plain),
            Backing::Hugetlb => (1, "hugetlb", Upright),
            Backing::Pagecache => (2, "pagecache", Level),
            Backing::Shared => (3, "shared", Grid),
        };
        if all {
            return Appearance { rank, colour, fill: Solid, texture, label: format!("huge: {backing}") };
        }
        let texture = if texture == Plain { Rising } else { texture };
        Appearance { rank: rank + 4, colour, fill: Half, texture, label: format!("partly huge: {backing}") }
    }

    /// Returns the appearance of what is not huge for this reason. Reasons that are close to each other share one.
    pub fn skipped(skip: &SkipReport) -> Appearance {
        let (rank, colour, fill, texture) = match skip.reason {
            "not-lifted" => (10, "could", Hollow, Plain),
            "pool-short" | "no-pool" | "no-such-page-size" | "lost-at-fork" => (20, "lack", Hollow, Rising),
            "thp-off" | "no-thp" => (21, "lack", Hollow, Falling),
            "memory-limit" | "memory-short" => (22, "lack", Hollow, Dots),
            "failed" | "fragmented" => (23, "lack", Hollow, Crosses),
            "not-aligned" => (30, "edge", Solid, Rising),
            "neighbour-protection" | "neighbour-not-lifted" | "kept-free" => (31, "edge", Solid, Falling),
            "too-small" => (32, "edge", Solid, Dots),
            "part-not-asked" => (40, "edge", Hollow, Level),
            "excluded" => (41, "edge", Hollow, Upright),
            _ if skip.why.is_remediable() => (24, "lack", Hollow, Grid),
            _ => (42, "edge", Hollow, Rings),
        };
        Appearance { rank, colour, fill, texture, label: skip.reason.replace('-', " ") }
    }

    /// Returns the class of its rectangles, which is also the name of its pattern.
    pub fn class(&self) -> String {
        let fill = match self.fill {
            Solid => "solid",
            Half => "half",
            Hollow => "hollow",
        };
        format!("c-{}-{fill}-{}", self.colour, self.texture.marks().0)
    }

    /// Returns the CSS rule that fills the class, and the pattern that the rule names.
    pub fn style(&self) -> (String, String) {
        let (class, colour) = (self.class(), format!("var(--{})", self.colour));
        let (_, marks) = self.texture.marks();
        let (paper, ink, broad) = match self.fill {
            Solid => (colour.as_str(), "var(--panel)", 1.4),
            Half => ("var(--panel)", colour.as_str(), 3.0),
            Hollow => ("var(--panel)", colour.as_str(), 1.4),
        };
        let outline = if self.fill == Solid { String::new() } else { format!(" stroke: {colour};") };
        let mut pattern = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            pattern,
            "<pattern id=\"{class}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"6\" height=\"6\" style=\"fill:{paper}\"/>\
             <path class=\"marks\" style=\"stroke:{ink};stroke-width:{broad}\" d=\"{marks}\"/></pattern>"
        );
        (format!(".{class} {{ fill: url(#{class});{outline} }}\n"), pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::skip::Reason;
    use std::collections::{BTreeMap, BTreeSet};

    /// Without colour, the fill and the texture are what is left.
    #[test]
    fn no_two_look_alike_without_colour() {
        let backings = [Backing::Thp, Backing::Hugetlb, Backing::Pagecache, Backing::Shared];
        let huge = backings.iter().flat_map(|b| [true, false].map(|all| Appearance::huge(*b, all)));
        let keys = [
            "not-lifted",
            "pool-short",
            "no-pool",
            "no-such-page-size",
            "thp-off",
            "no-thp",
            "memory-limit",
            "memory-short",
            "failed",
            "fragmented",
            "not-aligned",
            "neighbour-protection",
            "neighbour-not-lifted",
            "kept-free",
            "too-small",
            "part-not-asked",
            "excluded",
            "writable-code",
        ];
        let skip = |reason: &'static str, why: Reason| {
            Appearance::skipped(&SkipReport { reason, bytes: 1, hint: None, detail: String::new(), why })
        };
        let mut skipped: Vec<Appearance> = keys.iter().map(|key| skip(key, Reason::WritableCode)).collect();
        skipped.push(skip("not-primed", Reason::NotPrimed));
        let mut looks: BTreeMap<(Fill, &str), BTreeSet<u8>> = BTreeMap::new();
        for appearance in huge.chain(skipped) {
            looks.entry((appearance.fill, appearance.texture.marks().0)).or_default().insert(appearance.rank);
        }
        assert!(looks.values().all(|ranks| ranks.len() == 1), "{looks:?}");
        assert!(looks.len() >= 20, "{looks:?}");
    }
}
