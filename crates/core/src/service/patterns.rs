// SPDX-License-Identifier: Apache-2.0
//! The patterns of one condition: as they are written, and what they match.
//!
//! `*` stands for any characters, `?` for one, `[ab]` for one of these, `{a,b}` for one of these words. A `\`
//! takes the meaning from the character behind it. In the pattern of a path `*` and `?` match `/` too.

use crate::policy::matcher;
use crate::service::unit::{SLICE, SUFFIXES};
use globset::GlobSet;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::fmt;
use std::path::Path;

/// One pattern or a list of patterns, as it is written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Patterns(pub Vec<String>);

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Patterns, D::Error> {
        deserializer.deserialize_any(OneOrMore)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Patterns;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern or a list of patterns")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Patterns, E> {
        Ok(Patterns(vec![text.to_string()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Patterns, A::Error> {
        let mut all = Vec::new();
        while let Some(pattern) = list.next_element()? {
            all.push(pattern);
        }
        Ok(Patterns(all))
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Patterns {
    /// Returns the bytes of all patterns.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(String::len).sum()
    }

    /// Returns what matches the patterns, each of which is changed by `prepare` before.
    fn matcher(&self, prepare: impl Fn(&str) -> Result<String, String>) -> Result<GlobSet, String> {
        let prepared = self.each()?.map(prepare).collect::<Result<Vec<String>, String>>()?;
        matcher(&prepared)
    }

    /// Returns each pattern. There is at least one, and none is empty.
    fn each(&self) -> Result<impl Iterator<Item = &str>, String> {
        if self.0.is_empty() {
            return Err("an empty list matches nothing; remove the line for no condition".into());
        }
        if self.0.iter().any(String::is_empty) {
            return Err("an empty pattern matches nothing".into());
        }
        Ok(self.0.iter().map(String::as_str))
    }
}

/// Patterns of absolute paths.
#[derive(Clone, Debug)]
pub struct Paths {
    /// As it is written.
    pub written: Patterns,
    globs: GlobSet,
}

impl Paths {
    /// Prepares the patterns.
    ///
    /// # Errors
    /// Returns the pattern that is malformed, or that no absolute path matches.
    pub fn new(written: &Patterns) -> Result<Paths, String> {
        let globs = written.matcher(|pattern| match pattern.starts_with(['/', '*', '{']) {
            true => Ok(pattern.to_string()),
            false => Err(format!("'{pattern}' matches no absolute path: it does not begin with / or *")),
        })?;
        Ok(Paths { written: written.clone(), globs })
    }

    /// Returns whether a path matches one of the patterns.
    pub fn hold(&self, path: &Path) -> bool {
        self.globs.is_match(path)
    }
}

/// Patterns of the units of the system's manager.
#[derive(Clone, Debug)]
pub struct Units {
    /// As it is written.
    pub written: Patterns,
    globs: GlobSet,
}

impl Units {
    /// Prepares the patterns. A plain name without a suffix names a service, as for systemctl(1).
    ///
    /// # Errors
    /// Returns the pattern that is malformed, or that is the name of a slice: processes are in the units in it.
    pub fn new(written: &Patterns) -> Result<Units, String> {
        let globs = written.matcher(|pattern| {
            if let Some(slice) = pattern.strip_suffix(SLICE) {
                return Err(format!(
                    "'{pattern}' is a slice, which holds units; give cgroup = \"*/{slice}{SLICE}/*\""
                ));
            }
            let is_whole = pattern.contains(['*', '?', '[', '{', '\\'])
                || SUFFIXES.iter().any(|suffix| pattern.ends_with(suffix));
            Ok(if is_whole { pattern.to_string() } else { format!("{pattern}.service") })
        })?;
        Ok(Units { written: written.clone(), globs })
    }

    /// Returns whether a unit matches one of the patterns.
    pub fn hold(&self, unit: &str) -> bool {
        self.globs.is_match(unit)
    }
}

/// Patterns of names, or of labels.
#[derive(Clone, Debug)]
pub struct Names {
    /// As it is written.
    pub written: Patterns,
    globs: GlobSet,
}

impl Names {
    /// Prepares the patterns of names.
    ///
    /// # Errors
    /// Returns the pattern that is malformed.
    pub fn new(written: &Patterns) -> Result<Names, String> {
        let globs = written.matcher(|pattern| Ok(pattern.to_string()))?;
        Ok(Names { written: written.clone(), globs })
    }

    /// Prepares the patterns of labels, each of which is `key=value`.
    ///
    /// # Errors
    /// Returns the pattern that is malformed, or that no label matches.
    pub fn labels(written: &Patterns) -> Result<Names, String> {
        let globs = written.matcher(|pattern| match pattern.contains(['=', '*']) {
            true => Ok(pattern.to_string()),
            false => {
                Err(format!("'{pattern}' matches no label; write key=value, or {pattern}=* for any value"))
            }
        })?;
        Ok(Names { written: written.clone(), globs })
    }

    /// Returns whether one of these names matches one of the patterns.
    pub fn hold<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> bool {
        names.into_iter().any(|name| self.globs.is_match(name))
    }
}

/// Patterns of the names of users, and numbers of users.
#[derive(Clone, Debug)]
pub struct Users {
    /// As it is written.
    pub written: Patterns,
    uids: Vec<u32>,
    names: GlobSet,
}

impl Users {
    /// Prepares the patterns. One of digits alone is the number of a user, all others are for names.
    ///
    /// # Errors
    /// Returns the pattern that is malformed, or the number that no user has.
    pub fn new(written: &Patterns) -> Result<Users, String> {
        let is_number = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
        let (numbers, names): (Vec<&str>, Vec<&str>) = written.each()?.partition(is_number);
        let uids = numbers.into_iter().map(uid).collect::<Result<_, _>>()?;
        let names: Vec<String> = names.into_iter().map(str::to_string).collect();
        Ok(Users { written: written.clone(), uids, names: matcher(&names)? })
    }

    /// Returns whether a user is one of these. A user without a name is known by the number alone.
    pub fn hold(&self, uid: u32, name: Option<&str>) -> bool {
        self.uids.contains(&uid) || name.is_some_and(|name| self.names.is_match(name))
    }

    /// Returns the names that stand for one user each, and that no user has.
    pub fn unknown(&self, is_known: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
        let is_plain = |name: &str| !name.contains(['*', '?', '[', '{', '\\']);
        let is_number = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
        let all = self.written.0.iter().map(String::as_str);
        all.filter(move |name| is_plain(name) && !is_number(name) && !is_known(name))
    }
}

/// Reads the number of a user. The largest one stands for no user (chown(2)).
fn uid(number: &str) -> Result<u32, String> {
    let uid = number.parse().ok().filter(|uid| *uid != u32::MAX);
    uid.ok_or_else(|| format!("'{number}' is not the number of a user, which is at most 4294967294"))
}
