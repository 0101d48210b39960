// SPDX-License-Identifier: Apache-2.0
//! The legend under a picture. It is text of the page, not of the picture, so that it is as wide as the window
//! allows, and no name has to be cut.

use crate::html::page::escape;

/// The size of a sign, in pixels.
pub const SIGN: (f64, f64) = (26.0, 14.0);

/// A sign of a picture and its meaning.
pub struct Entry {
    /// The classes that colour the sign.
    pub class: String,
    /// What is drawn: SVG, in a box of the size [`SIGN`].
    pub sign: String,
    /// What it means: text.
    pub words: String,
}

impl Entry {
    /// Returns an entry.
    pub fn new(class: &str, sign: impl Into<String>, words: impl Into<String>) -> Entry {
        Entry { class: class.into(), sign: sign.into(), words: words.into() }
    }
}

/// Returns the legend; empty without entries.
pub fn legend(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let (width, height) = SIGN;
    let item = |entry: &Entry| {
        format!(
            "<li><svg class=\"sign {}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             aria-hidden=\"true\">{}</svg><span>{}</span></li>\n",
            entry.class,
            entry.sign,
            escape(&entry.words)
        )
    };
    format!("<ul class=\"keys\">\n{}</ul>\n", entries.iter().map(item).collect::<String>())
}
