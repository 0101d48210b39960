// SPDX-License-Identifier: Apache-2.0
//! The lines of a unit file: sections, assignments, comments and continued lines (systemd.syntax(7), and `config_parse` in
//! systemd's src/shared/conf-parser.c).

/// A line `KEY=VALUE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment<'a> {
    /// The section, as in `Service`; empty before the first one.
    pub section: &'a str,
    /// What is set, without blanks around it.
    pub key: String,
    /// Its value, without blanks around it. Each continued line is joined by a blank.
    pub value: String,
}

/// What systemd takes for blanks.
pub const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];
/// What ends a line (`read_line_full` in systemd's src/basic/fileio.c).
const ENDS: [char; 3] = ['\n', '\r', '\0'];

/// Returns the assignments of one file, in their order. A line that is none is left out, as by systemd.
pub fn assignments(text: &str) -> Vec<Assignment<'_>> {
    let mut found = Vec::new();
    let mut section = "";
    // The lines before, if the last one is continued.
    let mut begun = String::new();
    for line in text.trim_start_matches('\u{feff}').split(ENDS) {
        if line.trim_start_matches(BLANKS).starts_with(['#', ';']) {
            continue;
        }
        if begun.is_empty()
            && let Some(name) = section_of(line)
        {
            section = name;
            continue;
        }
        begun.push_str(line);
        if is_continued(&begun) {
            begun.pop();
            begun.push(' ');
        } else {
            found.extend(assignment(section, &begun));
            begun.clear();
        }
    }
    found.extend(assignment(section, &begun));
    found
}

/// Returns whether the last character is a backslash that no other one escapes.
fn is_continued(line: &str) -> bool {
    let slashes = line.bytes().rev().take_while(|b| *b == b'\\').count();
    slashes % 2 == 1
}

fn section_of(line: &str) -> Option<&str> {
    line.trim_matches(BLANKS).strip_prefix('[')?.strip_suffix(']')
}

fn assignment<'a>(section: &'a str, line: &str) -> Option<Assignment<'a>> {
    let (key, value) = line.trim_matches(BLANKS).split_once('=')?;
    let [key, value] = [key, value].map(|part| part.trim_matches(BLANKS).to_string());
    Some(Assignment { section, key, value })
}
