// SPDX-License-Identifier: Apache-2.0
//! A listening socket with its clients.
//!
//! The number of clients is limited, and the others wait in the kernel's queue. While some wait, a client keeps its place
//! for [`TURN`] only: clients that do nothing do not hold up those that ask.

use super::client::{Client, Left};
use crate::unix_socket::UnixSocket;
use nix::poll::PollFlags;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How many clients one socket has at the same time.
pub const PLACES: usize = 8;
/// How long a client keeps its place while others wait.
const TURN: Duration = Duration::from_secs(1);
/// How long no client is accepted after accept(2) failed, for example for lack of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Where clients connect.
pub enum Endpoint {
    /// A name in the file system.
    Unix(UnixSocket),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Endpoint {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Endpoint::Unix(socket) => {
                let (stream, _) = socket.listener().accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Endpoint::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Endpoint::Unix(socket) => socket.listener().as_fd(),
            Endpoint::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A listening socket and those whom it answers.
pub struct Listener {
    endpoint: Endpoint,
    /// In the order in which they were accepted.
    clients: Vec<Client>,
    /// No client is accepted before this time.
    paused_until: Option<Instant>,
}

impl Listener {
    /// Begins with no clients. The socket must not block.
    pub fn new(endpoint: Endpoint) -> Listener {
        Listener { endpoint, clients: Vec::new(), paused_until: None }
    }

    /// Returns the descriptors and what to wait for.
    pub fn wanted(&self, now: Instant) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let accepts = self.may_accept(now).then(|| (self.endpoint.as_fd(), PollFlags::POLLIN));
        accepts.into_iter().chain(self.clients.iter().map(Client::wanted))
    }

    /// Does what can be done now.
    pub fn go_on(&mut self, text: Option<&Rc<[u8]>>, now: Instant) {
        self.clients.retain_mut(|client| client.go_on(text, now) == Left::More);
        // A client that is served at once leaves its place free: without a limit, such clients could keep this going.
        for _ in 0..PLACES {
            if !self.may_accept(now) {
                return;
            }
            match self.endpoint.accept() {
                Ok(fd) => self.take(Client::new(fd, now), text, now),
                Err(error) if is_of_client(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The listener stays ready: without a pause the daemon's loop would never sleep.
                Err(_) => self.paused_until = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    fn take(&mut self, mut client: Client, text: Option<&Rc<[u8]>>, now: Instant) {
        if self.clients.len() >= PLACES {
            self.clients.remove(0);
        }
        if client.go_on(text, now) == Left::More {
            self.clients.push(client);
        }
    }

    /// Returns the next time, after `now`, at which there is something to do even if no descriptor is ready.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let later = self.paused_until.into_iter().chain(self.end_of_turn()).filter(|time| *time > now);
        self.clients.iter().map(Client::deadline).chain(later).min()
    }

    /// Returns how many clients there are.
    #[cfg(test)]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    fn may_accept(&self, now: Instant) -> bool {
        self.paused_until.is_none_or(|until| now >= until) && self.end_of_turn().is_none_or(|end| now >= end)
    }

    /// Returns when the oldest client may lose its place; `None` if there are free places.
    fn end_of_turn(&self) -> Option<Instant> {
        let oldest = self.clients.first().filter(|_| self.clients.len() >= PLACES)?;
        Some(oldest.since() + TURN)
    }
}

/// Returns whether accept(2) failed for a reason that ends with this client.
fn is_of_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
