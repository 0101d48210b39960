// SPDX-License-Identifier: Apache-2.0
//! The daemon's socket in the file system: which users may connect, and which file it may replace.

use hugelift_core::printable::Escape;
use hugelift_linux::io::entry::rename_to_free;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, umask};
use nix::unistd::{Gid, Group, Uid, UnlinkatFlags, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use thiserror::Error;

const NAME: &str = "service.sock";

/// Why there is no socket.
#[derive(Error, Debug)]
pub enum SocketError {
    /// Another file or daemon is at its path: the daemon does not start.
    #[error("{0}")]
    Taken(String),
    /// The socket cannot be made. The daemon works without it.
    #[error("{0}")]
    Failed(String),
}

/// A listening socket, whose name is removed when it is dropped.
pub struct Socket {
    listener: UnixListener,
    folder: OwnedFd,
    name: OsString,
    /// The socket's file, opened by `O_PATH`, so that no other file is changed or removed.
    file: OwnedFd,
    path: PathBuf,
}

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
    /// Call it before any thread is started: it changes the umask for a moment.
    ///
    /// # Errors
    /// [`SocketError::Taken`] if another file is there, or a daemon that answers.
    pub fn new(path: Option<&Path>) -> Result<Socket, SocketError> {
        let path = path.map(Path::to_path_buf).or_else(own_path).ok_or_else(|| {
            let why =
                "XDG_RUNTIME_DIR is not set, so there is no folder for the socket of 'hugelift service status'";
            SocketError::Failed(why.into())
        })?;
        let failed = |e: io::Error| SocketError::Failed(format!("cannot listen at {}: {e}", path.escaped()));
        let name = path.file_name().ok_or_else(|| failed(Errno::EISDIR.into()))?.to_os_string();
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(parent, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        if let Some(found) = stat(&folder, &name).map_err(|e| failed(e.into()))? {
            check_dead(&path, &found)?;
            take_away(&folder, &name, &found).map_err(|e| match e {
                Errno::EBUSY => taken(&path),
                e => failed(e.into()),
            })?;
        }
        // With this umask no other user can connect, from the moment at which the socket exists.
        let before = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(&path);
        umask(before);
        let listener = bound.map_err(|e| match e.kind() {
            // Another daemon has made its socket meanwhile.
            io::ErrorKind::AddrInUse => taken(&path),
            _ => failed(e),
        })?;
        listener.set_nonblocking(true).map_err(failed)?;
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&folder, name.as_os_str(), flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        if fstat(&file).ok().is_none_or(|m| !is_socket(&m) || m.st_uid != Uid::effective().as_raw()) {
            return Err(taken(&path));
        }
        Ok(Socket { listener, folder, name, file, path })
    }

    /// Returns the socket that accepts clients.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Permits the members of this group to connect; without a group, only this user.
    ///
    /// # Errors
    /// The group does not exist, or the socket cannot be given to it; then only this user may connect.
    pub fn set_group(&self, group: Option<&str>) -> Result<(), String> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mode = |mode| set_permissions(&file, Permissions::from_mode(mode));
        let failed = |e: io::Error| format!("cannot set the access rights of {}: {e}", self.path.escaped());
        mode(0o600).map_err(failed)?;
        let Some(name) = group else { return Ok(()) };
        let found = Group::from_name(name).ok().flatten();
        let Some(gid) = found.map(|group| group.gid) else {
            return Err(format!(
                "group: there is no group '{name}', so only {} may ask at {}",
                owner_name(),
                self.path.escaped()
            ));
        };
        if let Err(error) = chown(&file, None, Some(gid.as_raw())) {
            return Err(format!(
                "group: cannot give {} to group '{name}': {error}, so only {} may ask there; the daemon must \
                 be a member of the group, as by SupplementaryGroups={name} in its unit",
                self.path.escaped(),
                owner_name()
            ));
        }
        mode(0o660).map_err(|e| {
            let _ = chown(&file, None, Some(Gid::effective().as_raw()));
            failed(e)
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The name is removed only if it is still that of this socket: another daemon may have
        // replaced it.
        let here = stat(&self.folder, &self.name).ok().flatten();
        if let (Some(here), Ok(own)) = (here, fstat(&self.file))
            && same(&here, &own)
        {
            let _ = unlinkat(&self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

fn owner_name() -> &'static str {
    if Uid::effective().is_root() { "root" } else { "its own user" }
}

fn is_socket(stat: &FileStat) -> bool {
    kind(stat) == SFlag::S_IFSOCK
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

fn same(a: &FileStat, b: &FileStat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Returns what fstatat(2) says of this name in the folder, without following links; `None` if there is no such file.
fn stat(folder: &OwnedFd, name: &OsStr) -> nix::Result<Option<FileStat>> {
    match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn taken(path: &Path) -> SocketError {
    let path = path.escaped();
    SocketError::Taken(format!(
        "another hugelift service answers at {path}, or another program; ask it by 'hugelift service status \
         --socket {path}', or give this one a path of its own by --socket"
    ))
}

/// Checks that the file is a socket of this user on which no process listens.
fn check_dead(path: &Path, found: &FileStat) -> Result<(), SocketError> {
    let shown = path.escaped();
    let refused = |what: &str| {
        let line = format!(
            "{shown} is {what}, which hugelift service does not replace: remove it, or give --socket another path"
        );
        Err(SocketError::Taken(line))
    };
    match kind(found) {
        SFlag::S_IFSOCK => {}
        SFlag::S_IFREG => return refused("a regular file"),
        SFlag::S_IFDIR => return refused("a directory"),
        SFlag::S_IFLNK => return refused("a symbolic link"),
        SFlag::S_IFIFO => return refused("a FIFO"),
        _ => return refused("a device"),
    }
    if found.st_uid != Uid::effective().as_raw() {
        return refused(&format!("a socket of user {}", found.st_uid));
    }
    match try_connect(path) {
        Err(Errno::ECONNREFUSED) => Ok(()),
        // EAGAIN: a process listens, and its queue is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(taken(path)),
        Err(error) => refused(&format!("a socket on which another process may listen (connect: {error})")),
    }
}

/// Connects without waiting.
fn try_connect(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(probe.as_raw_fd(), &UnixAddr::new(path)?)
}

/// Removes the dead socket that was found, but not a file that has replaced it since.
///
/// # Errors
/// `EBUSY`: another file is there now.
fn take_away(folder: &OwnedFd, name: &OsStr, found: &FileStat) -> nix::Result<()> {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!(".{}", std::process::id()));
    let (from, to) = (name, aside.as_os_str());
    rename_to_free(folder, from, to)?;
    if stat(folder, to)?.is_some_and(|moved| same(&moved, found)) {
        return unlinkat(folder, to, UnlinkatFlags::NoRemoveDir);
    }
    rename_to_free(folder, to, from)?;
    Err(Errno::EBUSY)
}
