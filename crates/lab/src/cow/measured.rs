// SPDX-License-Identifier: Apache-2.0
//! The measurements of all cases.

use super::case::Case;
use super::redis::Served;
use super::whole::Whole;
use super::write::Forked;

/// The measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// The forks of each case. The forks of one size and pattern with the same index are of one round.
    pub cases: Vec<(Case, Vec<Forked>)>,
    /// Whole processes of each case, by round. Those of one size with the same index are of one round.
    pub whole: Vec<(Case, Vec<Whole>)>,
    /// redis while it saves its data.
    pub served: Served,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// Subjects that there is a note about already.
    pub noted: Vec<&'static str>,
}

impl Measured {
    /// Adds a note unless there is one about this subject: the same is true of larger cases.
    pub fn note(&mut self, about: &'static str, text: String) {
        if !self.noted.contains(&about) {
            self.noted.push(about);
            self.notes.push(text);
        }
    }

    /// Returns the whole processes of a case, if there are any.
    pub fn whole_runs(&self, case: Case) -> Option<&[Whole]> {
        self.whole.iter().find(|(other, _)| *other == case).map(|(_, runs)| &runs[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_about_one_thing_is_made_once() {
        let mut measured = Measured::default();
        measured.note("memory", "first".into());
        measured.note("memory", "second".into());
        measured.note("thp", "third".into());
        assert_eq!(measured.notes, ["first", "third"]);
    }
}
