// SPDX-License-Identifier: Apache-2.0
//! One client: it asks, gets its answer and leaves. Each turn does a bounded amount of work and never blocks.

use super::http::{MAX_REQUEST, Reply};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, recv, sendmsg, shutdown};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A client that has not received its answer within this time loses the connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A client that has its answer must close the connection within this time.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How many bytes are sent to one client in one turn.
const CHUNK: usize = 256 << 10;

/// A connection that was accepted. It does not block.
pub struct Client {
    fd: OwnedFd,
    state: State,
    since: Instant,
    deadline: Instant,
}

enum State {
    /// These bytes of the request have arrived.
    Asks(Vec<u8>),
    /// So many bytes of the head and the body were sent.
    Gets { head: Vec<u8>, body: Rc<[u8]>, sent: usize },
    /// It has the whole answer. If the connection were closed while bytes of the client are unread, the kernel would reset
    /// it, and the client might lose the answer. So its bytes are read and dropped until it closes.
    Leaves,
}

/// Whether a client needs another turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It does.
    More,
    /// It is done, gone or too slow.
    Nothing,
}

impl Client {
    /// Takes a connection that does not block.
    pub fn new(fd: OwnedFd, now: Instant) -> Client {
        Client { fd, state: State::Asks(Vec::new()), since: now, deadline: now + TIMEOUT }
    }

    /// Returns the connection, and what to wait for.
    pub fn wanted(&self) -> (BorrowedFd<'_>, PollFlags) {
        let events = match self.state {
            State::Gets { .. } => PollFlags::POLLOUT,
            State::Asks(_) | State::Leaves => PollFlags::POLLIN,
        };
        (self.fd.as_fd(), events)
    }

    /// Returns when the client was accepted.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns when the client must be dropped.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Does what can be done now. `text` are the metrics, if there are any yet.
    pub fn go_on(&mut self, text: Option<&Rc<[u8]>>, now: Instant) -> Left {
        if now >= self.deadline {
            return Left::Nothing;
        }
        let step = match self.state {
            State::Asks(_) => self.read(text),
            State::Gets { .. } => Ok(()),
            State::Leaves => return self.leave(),
        };
        match step.and_then(|()| self.send(now)) {
            Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => Left::More,
            Err(_) => Left::Nothing,
        }
    }

    /// Reads more of the request, and chooses the answer when it is complete.
    fn read(&mut self, text: Option<&Rc<[u8]>>) -> nix::Result<()> {
        let State::Asks(request) = &mut self.state else { return Ok(()) };
        let mut bytes = [0; MAX_REQUEST + 1];
        let room = bytes.len() - request.len();
        match recv(self.fd.as_raw_fd(), &mut bytes[..room], MsgFlags::MSG_DONTWAIT)? {
            // It has closed the connection in the middle of its request.
            0 => return Err(Errno::ECONNRESET),
            read => request.extend_from_slice(&bytes[..read]),
        }
        let reply = Reply::to(request).ok_or(Errno::EAGAIN)?;
        self.state = answer(reply, text);
        Ok(())
    }

    /// Sends more of the answer.
    fn send(&mut self, now: Instant) -> nix::Result<()> {
        let State::Gets { head, body, sent } = &mut self.state else { return Ok(()) };
        let head_left = head.get(*sent..).unwrap_or_default();
        let body_left = &body[sent.saturating_sub(head.len())..];
        let pieces = [IoSlice::new(head_left), IoSlice::new(&body_left[..body_left.len().min(CHUNK)])];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        *sent += sendmsg::<()>(self.fd.as_raw_fd(), &pieces, &[], flags, None)?;
        if *sent == head.len() + body.len() {
            shutdown(self.fd.as_raw_fd(), Shutdown::Write)?;
            self.state = State::Leaves;
            self.deadline = self.deadline.min(now + LEAVE_TIMEOUT);
        }
        Ok(())
    }

    /// Drops what the client still sends.
    fn leave(&self) -> Left {
        let mut dropped = [0; MAX_REQUEST];
        match recv(self.fd.as_raw_fd(), &mut dropped, MsgFlags::MSG_DONTWAIT) {
            Ok(1..) | Err(Errno::EAGAIN | Errno::EINTR) => Left::More,
            Ok(0) | Err(_) => Left::Nothing,
        }
    }
}

fn answer(reply: Reply, text: Option<&Rc<[u8]>>) -> State {
    let (reply, body) = match (reply, text) {
        (Reply::Metrics, Some(text)) => (reply, text.clone()),
        (Reply::Metrics, None) => (Reply::NotReady, Reply::NotReady.line().as_bytes().into()),
        (reply, _) => (reply, reply.line().as_bytes().into()),
    };
    State::Gets { head: reply.head(body.len()), body, sent: 0 }
}
