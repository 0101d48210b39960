// SPDX-License-Identifier: Apache-2.0
//! The client of `hugelift service status`: asks a running daemon.

use super::socket::{machine_path, own_path};
use hugelift_core::printable::Escape;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an answer may take in all. The daemon does not answer before its first round is done.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A limit that no answer of a daemon reaches.
const MAX_ANSWER: usize = 16 << 20;

/// Returns the answer of the daemon at `path`. Without a path the user's own daemon answers, or else root's.
///
/// # Errors
/// No daemon answers.
pub fn ask(path: Option<&Path>) -> Result<String, String> {
    let usual = || own_path().into_iter().chain([machine_path()]).collect();
    let mut paths: Vec<PathBuf> = path.map_or_else(usual, |p| vec![p.to_path_buf()]);
    paths.dedup();
    let mut why = String::new();
    for path in paths {
        match ask_at(&path, Instant::now() + ANSWER_TIMEOUT) {
            Ok(text) => return Ok(text),
            Err(Errno::EACCES) => {
                return Err(format!(
                    "you may not ask the hugelift service at {}: only its own user may, and the members of the group \
                     that its configuration names (group = \"NAME\")",
                    path.escaped()
                ));
            }
            // EAGAIN: SO_SNDTIMEO or SO_RCVTIMEO has ended a system call.
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => {
                return Err(format!(
                    "the hugelift service at {} did not answer within {} s",
                    path.escaped(),
                    ANSWER_TIMEOUT.as_secs()
                ));
            }
            Err(error) => why = format!("{}: {}", path.escaped(), error.desc()),
        }
    }
    Err(format!("no hugelift service answers ({why}); start it: systemctl start hugelift"))
}

fn ask_at(path: &Path, deadline: Instant) -> nix::Result<String> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // SO_SNDTIMEO also limits a connect(2) to a daemon whose queue is full.
    setsockopt(&socket, sockopt::SendTimeout, &left(deadline)?)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let bytes = receive(&socket, deadline)?;
    String::from_utf8(bytes).map_err(|_| Errno::EILSEQ)
}

fn receive(socket: &OwnedFd, deadline: Instant) -> nix::Result<Vec<u8>> {
    let (mut all, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    while all.len() < MAX_ANSWER {
        setsockopt(socket, sockopt::ReceiveTimeout, &left(deadline)?)?;
        match recv(socket.as_raw_fd(), &mut chunk, MsgFlags::empty()) {
            Ok(0) => return Ok(all),
            Ok(bytes) => all.extend_from_slice(&chunk[..bytes]),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EMSGSIZE)
}

/// Returns the time until the deadline as a socket option, for which 0 would mean no limit.
fn left(deadline: Instant) -> nix::Result<TimeVal> {
    let left = deadline.saturating_duration_since(Instant::now());
    match i64::try_from(left.as_micros()) {
        Ok(micros) if micros > 0 => Ok(TimeVal::microseconds(micros)),
        _ => Err(Errno::ETIMEDOUT),
    }
}
