// SPDX-License-Identifier: Apache-2.0
//! The proc connector (linux/cn_proc.h): the kernel tells which processes start and end, without anybody looking.
//!
//! It tells only processes with CAP_NET_ADMIN (since Linux 6.6 all) in the first namespaces of users, processes and the
//! network. All others list /proc. Two filters keep events out that do not matter: the kernel's own by kinds (Linux 6.6),
//! and one of the socket that leaves out threads.

mod filter;
#[cfg(test)]
mod tests;

use hugelift_core::proc_events::{Content, EXEC, EXIT, Event, GROUP, Request, Sequences, parse};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    MsgFlags, MultiHeaders, NetlinkAddr, bind, recvfrom, recvmmsg, send, setsockopt, sockopt,
};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of the receive buffer. The kernel doubles that, and counts 768 for a message: 2,700 messages may wait.
const BUFFER: usize = 1 << 20;
/// The kernel answers before send(2) returns.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most messages that one call takes: more than the buffer holds.
const MOST: usize = 4096;
/// The messages of one system call. Beside hundreds of starts a second its price would be the larger part of a message's.
const AT_ONCE: usize = 64;
/// A message has 76 bytes.
const MESSAGE: usize = 128;

/// Why the kernel tells nothing of processes. Whoever wants to know of them lists /proc.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoEvents {
    /// There is no connector.
    #[error("this kernel has no proc connector (CONFIG_PROC_EVENTS)")]
    Missing,
    /// The caller lacks the right.
    #[error("proc connector: {0}: only CAP_NET_ADMIN may listen: be root")]
    Denied(Errno),
    /// The kernel does not answer: it does so only to the first namespaces, and with CONFIG_PROC_EVENTS.
    #[error(
        "proc connector: no answer: this is a namespace of users, processes or the network other than the first, or \
         the kernel has no CONFIG_PROC_EVENTS"
    )]
    Unanswered,
    /// Anything else.
    #[error("proc connector: {0}")]
    Os(Errno),
}

impl From<Errno> for NoEvents {
    fn from(errno: Errno) -> NoEvents {
        match errno {
            Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT => NoEvents::Missing,
            Errno::EPERM | Errno::EACCES => NoEvents::Denied(errno),
            // The kernel's end of the connector is in the first namespace of the network alone.
            Errno::ECONNREFUSED => NoEvents::Unanswered,
            errno => NoEvents::Os(errno),
        }
    }
}

/// A socket on which the kernel tells which processes execute a program, and which end. It does not block; poll(2) finds it
/// readable when there are events.
#[derive(Debug)]
pub struct Connector {
    socket: OwnedFd,
    /// Without the socket's filter messages are numbered without gaps.
    sequences: Option<Sequences>,
}

/// What one call has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// All that was there.
    All,
    /// As much as one call takes. More may be there.
    Part,
}

impl Connector {
    /// Opens the socket and asks the kernel for events.
    ///
    /// # Errors
    /// [`NoEvents`]
    pub fn open() -> Result<Connector, NoEvents> {
        Connector::begin(true)
    }

    fn begin(with_filter: bool) -> Result<Connector, NoEvents> {
        let socket = open_socket()?;
        // Only root may have a larger buffer than net.core.rmem_max.
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
            .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER))?;
        let is_filtered = with_filter && filter::attach(socket.as_fd()).is_ok();
        // The kernel gives the socket a number.
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1 << (GROUP - 1)))?;
        let sequences = (!is_filtered).then(Sequences::default);
        let mut connector = Connector { socket, sequences };
        connector.subscribe(with_filter)?;
        Ok(connector)
    }

    fn subscribe(&mut self, with_kinds: bool) -> Result<(), NoEvents> {
        // Any number; one of this process is rarely that of another's request.
        let number = std::process::id().wrapping_mul(0x9e37_79b9);
        self.request(Request::Listen, number)?;
        let began = Instant::now();
        while let Some(left) = PATIENCE.checked_sub(began.elapsed()) {
            match self.message()? {
                Some(Received { content: Content::Answer { number: of, errno }, .. }) if of == number => {
                    // Before Linux 6.6 the number of the error is positive; this takes both.
                    let errno = errno.cast_signed().wrapping_abs();
                    return match errno {
                        0 if with_kinds => Ok(self.request(Request::ListenTo(EXEC | EXIT), number)?),
                        0 => Ok(()),
                        errno => Err(Errno::from_raw(errno).into()),
                    };
                }
                Some(_) => {}
                None => self.wait(left)?,
            }
        }
        Err(NoEvents::Unanswered)
    }

    fn request(&self, request: Request, number: u32) -> Result<(), Errno> {
        send(self.socket.as_raw_fd(), &request.bytes(number), MsgFlags::MSG_NOSIGNAL).map(drop)
    }

    fn wait(&self, time: Duration) -> Result<(), Errno> {
        let millis = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], millis) {
            Err(errno) if errno != Errno::EINTR => Err(errno),
            _ => Ok(()),
        }
    }

    /// Takes the events that are there, at most 4,096 messages a call, and appends them to `events`.
    ///
    /// # Errors
    /// errno(3) of recvfrom(2): nothing will come any more.
    pub fn read(&mut self, events: &mut Vec<Event>) -> Result<Taken, NoEvents> {
        let mut buffers = [[0; MESSAGE]; AT_ONCE];
        for _ in 0..MOST / AT_ONCE {
            if self.messages(&mut buffers, events)? == Taken::All {
                return Ok(Taken::All);
            }
        }
        Ok(Taken::Part)
    }

    /// Takes as many messages as one system call gives, and appends their events to `events`.
    fn messages(
        &mut self,
        buffers: &mut [[u8; MESSAGE]; AT_ONCE],
        events: &mut Vec<Event>,
    ) -> Result<Taken, Errno> {
        let mut headers = MultiHeaders::<NetlinkAddr>::preallocate(AT_ONCE, None);
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let mut add = |received: Received| events.extend(received.events());
        let flags = MsgFlags::MSG_DONTWAIT;
        let taken = match recvmmsg(self.socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None) {
            Ok(taken) => taken,
            Err(Errno::EINTR) => return Ok(Taken::Part),
            Err(Errno::ENOBUFS) => {
                add(Received { is_after_gap: true, content: Content::Other });
                return Ok(Taken::Part);
            }
            Err(Errno::EAGAIN) => return Ok(Taken::All),
            Err(errno) => return Err(errno),
        };
        let mut count = 0;
        for message in taken {
            count += 1;
            // Any process may send to the socket; the number of the kernel is 0.
            if message.address.is_some_and(|sender| sender.pid() == 0) {
                message.iovs().for_each(|bytes| add(received(&mut self.sequences, bytes)));
            }
        }
        // An error behind the last message is that of the next call.
        Ok(if count < AT_ONCE { Taken::All } else { Taken::Part })
    }

    /// Takes one message; returns `None` if there is none.
    fn message(&mut self) -> Result<Option<Received>, Errno> {
        let mut buffer = [0; MESSAGE];
        match recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
            // Any process may send to the socket; the number of the kernel is 0.
            Ok((length, Some(sender))) if sender.pid() == 0 => {
                Ok(Some(received(&mut self.sequences, &buffer[..length])))
            }
            Ok(_) | Err(Errno::EINTR) => Ok(Some(Received::NOTHING)),
            Err(Errno::ENOBUFS) => Ok(Some(Received { is_after_gap: true, content: Content::Other })),
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

fn received(sequences: &mut Option<Sequences>, datagram: &[u8]) -> Received {
    let Some(message) = parse(datagram) else { return Received::NOTHING };
    let is_after_gap = sequences.as_mut().is_some_and(|sequences| sequences.has_gap(&message));
    Received { is_after_gap, content: message.content }
}

/// What came out of the socket.
#[derive(Debug)]
struct Received {
    /// Messages are missing before it.
    is_after_gap: bool,
    content: Content,
}

impl Received {
    const NOTHING: Received = Received { is_after_gap: false, content: Content::Other };

    fn events(&self) -> impl Iterator<Item = Event> + use<> {
        let event = match self.content {
            Content::Event(event) => Some(event),
            _ => None,
        };
        self.is_after_gap.then_some(Event::Lost).into_iter().chain(event)
    }
}

/// Opens a socket of the connector, which does not block.
fn open_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes three numbers.
    let fd = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_CONNECTOR) })?;
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsFd for Connector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connector {
    /// Older kernels than 6.6 go on counting a listener that does not say that it stops.
    fn drop(&mut self) {
        let _ = self.request(Request::Ignore, 0);
    }
}
