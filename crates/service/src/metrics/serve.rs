// SPDX-License-Identifier: Apache-2.0
//! Gives the metrics to scrapers: by a Unix socket, and by a TCP port.
//!
//! The server has no thread. The daemon waits by poll(2) for the descriptors that [`Server::wanted`] names, until
//! [`Server::next_deadline`], and then calls [`Server::go_on`]. No call blocks, and each does a bounded amount of work.
//! Each socket has places for eight clients, of which each has five seconds.

mod client;
mod http;
mod listener;
#[cfg(test)]
mod tests;

use crate::unix_socket::{ListenError, Purpose, UnixSocket};
use listener::{Endpoint, Listener};
use nix::poll::PollFd;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

const PURPOSE: Purpose = Purpose {
    mode: 0o660,
    queue: 64,
    owner: "the service",
    advice: "choose another path",
    taken: |path| format!("another process answers at {path}: choose another path"),
};

/// Serves the metrics. It listens nowhere at first.
#[derive(Default)]
pub struct Server {
    unix: Option<Listener>,
    tcp: Option<Listener>,
    text: Option<Rc<[u8]>>,
}

impl Server {
    /// Listens at a path too, instead of at the one before. The daemon's user may connect, and the members of its group
    /// (mode 0660). Only a socket that a daemon of this user has left there is replaced. The name is removed with the server.
    ///
    /// # Errors
    /// Another file is there, or a process that answers; or the socket cannot be made.
    pub fn listen_at(&mut self, path: &Path) -> Result<(), ListenError> {
        self.unix = None;
        self.unix = Some(Listener::new(Endpoint::Unix(UnixSocket::new(path, &PURPOSE)?)));
        Ok(())
    }

    /// Listens at a TCP port too, instead of at the one before, and returns its number. Everybody who reaches the address
    /// may connect. The kernel chooses a port for 0.
    ///
    /// # Errors
    /// Another process listens there; or the socket cannot be made.
    pub fn listen_on(&mut self, address: SocketAddr) -> Result<u16, ListenError> {
        self.tcp = None;
        let (listener, port) = bound(address).map_err(|error| {
            let line = format!("cannot listen at {address}: {error}");
            match error.kind() {
                io::ErrorKind::AddrInUse => ListenError::Taken(format!("{line}; choose another port")),
                _ => ListenError::Failed(line),
            }
        })?;
        self.tcp = Some(Listener::new(Endpoint::Tcp(listener)));
        Ok(port)
    }

    /// Replaces the text of the metrics. Clients that have begun to read the old one get the rest of it.
    pub fn set_text(&mut self, text: Rc<[u8]>) {
        self.text = Some(text);
    }

    /// Returns the descriptors for poll(2), with the events to wait for.
    pub fn wanted(&self, now: Instant) -> impl Iterator<Item = PollFd<'_>> {
        let wanted = self.listeners().flat_map(move |listener| listener.wanted(now));
        wanted.map(|(fd, events)| PollFd::new(fd, events))
    }

    /// Returns when [`Server::go_on`] must be called even if no descriptor is ready; `None` if there is no such time.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.listeners().filter_map(|listener| listener.next_deadline(now)).min()
    }

    /// Does what can be done now: accepts clients, reads requests, sends answers, and drops who is done or too slow.
    pub fn go_on(&mut self, now: Instant) {
        for listener in [&mut self.unix, &mut self.tcp].into_iter().flatten() {
            listener.go_on(self.text.as_ref(), now);
        }
    }

    fn listeners(&self) -> impl Iterator<Item = &Listener> {
        [&self.unix, &self.tcp].into_iter().flatten()
    }
}

/// Returns a socket that listens at an address, and its port.
fn bound(address: SocketAddr) -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}
