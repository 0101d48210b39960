// SPDX-License-Identifier: Apache-2.0
//! Colours in text for a terminal.

/// Returns `text` between the SGR parameters `code` (as in `1;31`) and their end, if it is to have colours.
pub fn paint(colour: bool, code: &str, text: &str) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}
