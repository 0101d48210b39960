// SPDX-License-Identifier: Apache-2.0
//! Becoming another user, as runuser(1) does: by name or number, with the supplementary
//! groups of a named one.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgid, setgroups, setuid};
use std::collections::BTreeSet;
use std::ffi::CString;

/// A user to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
    /// The name in the user database, if it has one.
    name: Option<CString>,
}

impl Identity {
    /// Looks up `USER[:GROUP]`, each a name or a number. The group of a bare number that
    /// the user database does not know is that same number.
    ///
    /// # Errors
    /// A message that names the user or group that does not exist.
    pub fn find(spec: &str) -> Result<Identity, String> {
        let (user, group) = match spec.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (spec, None),
        };
        let failed = |what: &str, e: nix::Error| format!("--user {spec}: cannot look up {what}: {e}");
        let entry = User::from_name(user).map_err(|e| failed(user, e))?;
        let entry = match (entry, user.parse::<u32>()) {
            (Some(entry), _) => Ok(entry),
            (None, Ok(number)) => match User::from_uid(Uid::from_raw(number)).map_err(|e| failed(user, e))? {
                Some(entry) => Ok(entry),
                None => Err(number),
            },
            (None, Err(_)) => return Err(format!("--user {spec}: there is no user '{user}'; getent passwd")),
        };
        let group = match group {
            None => None,
            Some(name) => match (Group::from_name(name).map_err(|e| failed(name, e))?, name.parse::<u32>()) {
                (Some(entry), _) => Some(entry.gid),
                (None, Ok(number)) => Some(Gid::from_raw(number)),
                (None, Err(_)) => {
                    return Err(format!("--user {spec}: there is no group '{name}'; getent group"));
                }
            },
        };
        Ok(match entry {
            Ok(entry) => Identity {
                uid: entry.uid,
                gid: group.unwrap_or(entry.gid),
                name: CString::new(entry.name).ok(),
            },
            Err(number) => Identity {
                uid: Uid::from_raw(number),
                gid: group.unwrap_or(Gid::from_raw(number)),
                name: None,
            },
        })
    }

    /// Becomes this user, for good. That user can trace the process afterwards, like any other process of
    /// that user.
    ///
    /// # Errors
    /// The call that failed; EPERM for anyone but root.
    pub fn assume(&self) -> Result<(), String> {
        let failed = |call: &str, e: nix::Error| {
            format!("--user: {call} to {}:{}: {e}; only root may change users", self.uid, self.gid)
        };
        match &self.name {
            Some(name) => {
                // musl names the first group twice, if a file lists the user as a member of it.
                let mut groups = getgrouplist(name, self.gid).map_err(|e| failed("getgrouplist", e))?;
                let mut seen = BTreeSet::new();
                groups.retain(|group| seen.insert(group.as_raw()));
                setgroups(&groups).map_err(|e| failed("setgroups", e))?;
            }
            None => setgroups(&[self.gid]).map_err(|e| failed("setgroups", e))?,
        }
        setgid(self.gid).map_err(|e| failed("setgid", e))?;
        setuid(self.uid).map_err(|e| failed("setuid", e))?;
        // The change of user has cleared the dumpable flag, so that only root could trace this process.
        // execve(2) would set it again, which is too late for the helper.
        let _ = nix::sys::prctl::set_dumpable(true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let root = Identity::find("root").unwrap();
        assert_eq!(Identity::find("0").unwrap(), root);
        assert_eq!(Identity::find("root:0").unwrap(), root);
        let unknown = Identity::find("3999999999:7").unwrap();
        assert_eq!((unknown.uid.as_raw(), unknown.gid.as_raw(), unknown.name), (3999999999, 7, None));
        for bad in ["no-such-user-here", "root:no-such-group-here", ""] {
            assert!(Identity::find(bad).unwrap_err().contains("there is no"), "{bad}");
        }
    }
}
