// SPDX-License-Identifier: Apache-2.0
//! The daemon's socket in the file system: where it is, and which group may connect.

use crate::unix_socket::{ListenError, Purpose, UnixSocket};
use hugelift_core::printable::Escape;
use nix::unistd::{Gid, Group, Uid};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

const NAME: &str = "service.sock";

/// Before the policy names a group, this user alone may connect.
const PURPOSE: Purpose = Purpose {
    mode: 0o600,
    queue: -1,
    owner: "hugelift service",
    advice: "give --socket another path",
    taken: |path| {
        format!(
            "another hugelift service answers at {path}, or another program; ask it by 'hugelift service status \
             --socket {path}', or give this one a path of its own by --socket"
        )
    },
};

/// A listening socket, whose name is removed when it is dropped.
pub struct Socket(UnixSocket);

/// Returns the path at which a daemon of this user listens: in systemd's `RuntimeDirectory=`, else
/// in /run/hugelift (root), else in the user's `XDG_RUNTIME_DIR`.
pub fn own_path() -> Option<PathBuf> {
    let given = std::env::var_os("RUNTIME_DIRECTORY");
    let given = given.and_then(|list| std::env::split_paths(&list).next()).filter(|d| d.has_root());
    let folder =
        given.or_else(|| if Uid::effective().is_root() { Some(machine_folder()) } else { user_folder() })?;
    Some(folder.join(NAME))
}

/// Returns the path at which root's daemon listens.
pub fn machine_path() -> PathBuf {
    machine_folder().join(NAME)
}

fn machine_folder() -> PathBuf {
    PathBuf::from("/run/hugelift")
}

fn user_folder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    folder.has_root().then(|| folder.join("hugelift"))
}

impl Socket {
    /// Listens at `path`, or at the default path, for this user alone. Only a socket that a killed
    /// daemon of this user has left there is replaced.
    ///
    /// # Errors
    /// [`ListenError::Taken`] if another file is there, or a daemon that answers.
    pub fn new(path: Option<&Path>) -> Result<Socket, ListenError> {
        let path = path.map(Path::to_path_buf).or_else(own_path).ok_or_else(|| {
            let why =
                "XDG_RUNTIME_DIR is not set, so there is no folder for the socket of 'hugelift service status'";
            ListenError::Failed(why.into())
        })?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
        made.map_err(|e| ListenError::Failed(format!("cannot listen at {}: {e}", path.escaped())))?;
        // It would be followed.
        if path.is_symlink() {
            return Err(PURPOSE.refused(&path, "a symbolic link"));
        }
        Ok(Socket(UnixSocket::new(&path, &PURPOSE)?))
    }

    /// Returns the socket that accepts clients.
    pub fn listener(&self) -> &UnixListener {
        self.0.listener()
    }

    /// Permits the members of this group to connect; without a group, only this user.
    ///
    /// # Errors
    /// The group does not exist, or the socket cannot be given to it; then only this user may connect.
    pub fn set_group(&self, group: Option<&str>) -> Result<(), String> {
        let (path, mode) = (self.0.path(), |mode| self.0.set_mode(mode));
        let failed = |e: io::Error| format!("cannot set the access rights of {}: {e}", path.escaped());
        mode(0o600).map_err(failed)?;
        let Some(name) = group else { return Ok(()) };
        let found = Group::from_name(name).ok().flatten();
        let Some(gid) = found.map(|group| group.gid) else {
            return Err(format!(
                "group: there is no group '{name}', so only {} may ask at {}",
                owner_name(),
                path.escaped()
            ));
        };
        if let Err(error) = self.0.set_group(gid) {
            return Err(format!(
                "group: cannot give {} to group '{name}': {error}, so only {} may ask there; the daemon must \
                 be a member of the group, as by SupplementaryGroups={name} in its unit",
                path.escaped(),
                owner_name()
            ));
        }
        mode(0o660).map_err(|e| {
            let _ = self.0.set_group(Gid::effective());
            failed(e)
        })
    }
}

fn owner_name() -> &'static str {
    if Uid::effective().is_root() { "root" } else { "its own user" }
}
