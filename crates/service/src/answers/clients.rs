// SPDX-License-Identifier: Apache-2.0
//! The clients that the daemon is answering: a limited number, each with a deadline. The daemon
//! never blocks on one.

use nix::sys::socket::{MsgFlags, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How many clients are answered at the same time. The others wait in the kernel's queue.
const MAX_CLIENTS: usize = 16;
/// A client that has not read its answer within this time loses the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many bytes are sent to one client in one turn of the loop.
const CHUNK: usize = 256 << 10;
/// How long no client is accepted after accept(2) failed, for example for lack of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// All clients that have not received their whole answer.
#[derive(Default)]
pub struct Clients {
    all: Vec<Client>,
    /// No client is accepted before this time.
    paused: Option<Instant>,
}

struct Client {
    stream: UnixStream,
    answer: Rc<[u8]>,
    sent: usize,
    deadline: Instant,
}

/// Whether a client needs another turn.
enum Left {
    More,
    Nothing,
}

impl Clients {
    /// Returns whether there is room for one more.
    pub fn may_accept(&self) -> bool {
        self.all.len() < MAX_CLIENTS && self.paused.is_none_or(|until| Instant::now() >= until)
    }

    /// Accepts waiting clients, as far as there is room, and sends each the beginning of `answer`.
    pub fn accept(&mut self, listener: &UnixListener, answer: &Rc<[u8]>) {
        // A client that takes the whole answer at once leaves its place free: without a limit, such
        // clients could keep this loop going.
        for _ in 0..MAX_CLIENTS {
            if !self.may_accept() {
                return;
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let deadline = Instant::now() + ANSWER_TIMEOUT;
                    let mut client = Client { stream, answer: answer.clone(), sent: 0, deadline };
                    if let Left::More = client.send() {
                        self.all.push(client);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The listener stays ready: without a pause the daemon's loop would never sleep.
                Err(_) => self.paused = Some(Instant::now() + ACCEPT_PAUSE),
            }
        }
    }

    /// Returns the sockets to poll(2) until they can be written to.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|client| client.stream.as_fd())
    }

    /// Sends each client what its socket takes now, and drops those that are done, gone or too slow.
    pub fn serve(&mut self) {
        let now = Instant::now();
        self.all.retain_mut(|client| now < client.deadline && matches!(client.send(), Left::More));
    }

    /// Returns the time when a client must be dropped, or when clients can be accepted again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let pause = self.paused.filter(|until| *until > Instant::now());
        self.all.iter().map(|client| client.deadline).chain(pause).min()
    }
}

impl Client {
    fn send(&mut self) -> Left {
        let rest = &self.answer[self.sent..];
        let chunk = &rest[..rest.len().min(CHUNK)];
        match send(self.stream.as_raw_fd(), chunk, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(bytes) => {
                self.sent += bytes;
                if self.sent < self.answer.len() { Left::More } else { Left::Nothing }
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Left::More,
            Err(_) => Left::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn clients_that_do_not_read_take_no_more_than_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let answer: Rc<[u8]> = vec![b'x'; 4 << 20].into();
        let lazy: Vec<UnixStream> =
            (0..MAX_CLIENTS + 4).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let mut clients = Clients::default();
        clients.accept(&listener, &answer);
        assert_eq!((clients.all.len(), clients.may_accept()), (MAX_CLIENTS, false));
        clients.serve();
        assert_eq!(clients.all.len(), MAX_CLIENTS);
        assert!(clients.next_deadline().is_some());
        // The first one reads and gets all of it, a chunk each turn. The others hang up here.
        let mut reader = lazy.into_iter().next().unwrap();
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all.len())
        });
        // A client ends at its deadline at the latest, so this loop ends.
        while !clients.all.is_empty() {
            clients.serve();
            std::thread::yield_now();
        }
        assert_eq!(read.join().unwrap().unwrap(), answer.len());
        assert!(clients.all.is_empty());
    }

    #[test]
    fn a_client_past_its_deadline_is_dropped() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let answer: Rc<[u8]> = vec![0; 4 << 20].into();
        let mut clients = Clients::default();
        clients.all.push(Client { stream: ours, answer, sent: 0, deadline: Instant::now() });
        clients.serve();
        assert!(clients.all.is_empty());
    }
}
