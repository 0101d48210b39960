// SPDX-License-Identifier: Apache-2.0
//! The daemon's socket: whoever connects is told how things are.

use hugelift_core::printable::Escape;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAME: &str = "keep.sock";
/// Neither side waits longer for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any answer has.
const MAX_ANSWER: u64 = 16 << 20;

/// A socket that listens; its name is removed when dropped.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// Where a daemon of this user listens: in systemd's `RuntimeDirectory=`, else in
/// /run/hugelift (root), else in the user's own `XDG_RUNTIME_DIR`.
fn own_path() -> Option<PathBuf> {
    let given = std::env::var_os("RUNTIME_DIRECTORY");
    let given = given.and_then(|list| std::env::split_paths(&list).next()).filter(|d| d.has_root());
    let folder = given
        .or_else(|| if nix::unistd::geteuid().is_root() { Some(machine_folder()) } else { user_folder() })?;
    Some(folder.join(NAME))
}

fn machine_folder() -> PathBuf {
    PathBuf::from("/run/hugelift")
}

fn user_folder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    folder.has_root().then(|| folder.join("hugelift"))
}

impl Socket {
    /// Listens at `path`, or in the usual place. What a killed daemon has left there is
    /// taken over.
    ///
    /// # Errors
    /// Why not, in words; the daemon that is there already.
    pub fn new(path: Option<&Path>) -> Result<Socket, String> {
        let path = path.map(Path::to_path_buf).or_else(own_path);
        let path = path.ok_or("XDG_RUNTIME_DIR is not set: nowhere to answer `hugelift keep status`")?;
        let failed = |e: std::io::Error| format!("cannot listen at {}: {e}", path.escaped());
        if UnixStream::connect(&path).is_ok() {
            return Err(format!("another hugelift keep answers at {}", path.escaped()));
        }
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
        }
        let listener = UnixListener::bind(&path).or_else(|e| match e.kind() {
            ErrorKind::AddrInUse => {
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)
            }
            _ => Err(e),
        });
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        // Anybody may ask.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(Socket { listener, path })
    }

    /// Answers everybody who waits.
    pub fn answer(&self, text: &str) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            // One that does not read does not stop us for long.
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_write_timeout(Some(PATIENCE));
            let _ = stream.write_all(text.as_bytes());
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a daemon says: the one at `path`, or the user's own, or the machine's.
///
/// # Errors
/// None answers.
pub fn ask(path: Option<&Path>) -> Result<String, String> {
    let usual = || own_path().into_iter().chain([machine_folder().join(NAME)]).collect();
    let mut paths: Vec<PathBuf> = path.map_or_else(usual, |p| vec![p.to_path_buf()]);
    paths.dedup();
    let mut why = String::new();
    for path in paths {
        let answer = UnixStream::connect(&path).and_then(|stream| {
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            let mut text = String::new();
            stream.take(MAX_ANSWER).read_to_string(&mut text)?;
            Ok(text)
        });
        match answer {
            Ok(text) => return Ok(text),
            Err(error) => why = format!("{}: {error}", path.escaped()),
        }
    }
    Err(format!("no hugelift keep answers ({why}); start it: systemctl start hugelift-keep"))
}
