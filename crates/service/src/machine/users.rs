// SPDX-License-Identifier: Apache-2.0
//! The names of users, from /etc/passwd (passwd(5)). Other directories are not asked: they may not answer, and the daemon waits
//! for nobody. A rule may name such a user by its number.

use std::collections::BTreeMap;

const PASSWD: &str = "/etc/passwd";

/// The names of users by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users(BTreeMap<u32, String>);

impl Users {
    /// Reads them. Without the file there are none.
    pub fn read() -> Users {
        Users::parse(&std::fs::read_to_string(PASSWD).unwrap_or_default())
    }

    fn parse(text: &str) -> Users {
        let mut users = Users::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (name, uid) = (fields.next(), fields.nth(1).and_then(|uid| uid.parse().ok()));
            if let (Some(name), Some(uid)) = (name.filter(|name| !name.is_empty()), uid) {
                // The first line of a number counts, as for getpwuid(3).
                users.0.entry(uid).or_insert_with(|| name.into());
            }
        }
        users
    }

    /// Returns the name of a user.
    pub fn name(&self, uid: u32) -> Option<&str> {
        self.0.get(&uid).map(String::as_str)
    }

    /// Returns whether a user has this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.values().any(|known| known == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_3_users_have_names() {
        let users = Users::parse(
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\n\n:x:5:5\nbad\nm:x:998:998\nx:y:z\n",
        );
        assert_eq!([users.name(0), users.name(998), users.name(5)], [Some("root"), Some("m"), None]);
        assert_eq!(["m", "bad"].map(|name| users.has(name)), [true, false]);
    }
}
