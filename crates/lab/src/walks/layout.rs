// SPDX-License-Identifier: Apache-2.0
//! Which pages are huge: the cases that are compared.

use super::code::Place;
use super::cpu::Page;
use serde::Serialize;

/// A case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Layout {
    /// All pages have 4 kB.
    #[serde(rename = "small")]
    Small,
    /// Code is on aligned blocks of 64 kB that are adjacent in memory.
    #[serde(rename = "code-64k")]
    Code64k,
    /// Code is on pages of 2 MB.
    #[serde(rename = "code-2m")]
    Code2m,
    /// Code and data are on pages of 2 MB.
    #[serde(rename = "all-2m")]
    All2m,
}

impl Layout {
    /// All cases, the one that others are compared with first.
    pub const ALL: [Layout; 4] = [Layout::Small, Layout::Code64k, Layout::Code2m, Layout::All2m];

    /// Returns the page behind an address.
    pub fn page(self, place: Place) -> Page {
        match self {
            Layout::Code64k if place.in_64k => Page::Contiguous,
            Layout::Code2m if place.in_2m => Page::Huge,
            Layout::All2m => Page::Huge,
            _ => Page::Small,
        }
    }

    /// Returns the case in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Layout::Small => "4 kB",
            Layout::Code64k => "code 64 kB",
            Layout::Code2m => "code 2 MB",
            Layout::All2m => "all 2 MB",
        }
    }
}
