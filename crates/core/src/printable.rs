// SPDX-License-Identifier: Apache-2.0
//! Text that comes from outside, as names do, on its way to a terminal or into a line.

/// The text with a question mark for each control character.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_of_it_moves_the_cursor() {
        assert_eq!(printable("a\nb\x1b[2J\u{9b}\tä"), "a?b?[2J??ä");
    }
}
