// SPDX-License-Identifier: Apache-2.0
//! Passes a file of this process to a thread that is lent, as a descriptor.
//!
//! The thread cannot open the file itself: it may have another user, another root directory, other mounts
//! or another /proc. So it connects to a socket of this process and receives the descriptor (unix(7),
//! `SCM_RIGHTS`). The socket has an abstract name in the network namespace of the thread.

use crate::lent::Lent;
use crate::ptrace::Error;
use hugelift_core::addr::Addr;
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::Process;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Bytes of memory that the calls of the thread write to.
const SCRATCH_BYTES: u64 = 4096;
/// Offsets in them: of `struct iovec`, of the byte that comes with the descriptor, of the control message and
/// of `struct sockaddr_un`. `struct msghdr` is in front.
const IOVEC_AT: u64 = 64;
const BYTE_AT: u64 = 80;
const CONTROL_AT: u64 = 96;
const NAME_AT: u64 = 128;
/// `CMSG_SPACE(sizeof(int))`: `struct cmsghdr`, and one descriptor in a word.
const CONTROL_BYTES: u64 = 24;
/// `CMSG_DATA`: behind `struct cmsghdr`.
const DESCRIPTOR_AT: u64 = CONTROL_AT + 16;

/// A socket to which a process can connect.
#[derive(Debug)]
pub(crate) struct Passage {
    pid: i32,
    listener: UnixListener,
    /// Its abstract name.
    name: Vec<u8>,
}

impl Passage {
    /// Makes the socket for process `pid`.
    ///
    /// # Errors
    /// The process is in another network namespace, and this process may not enter it; socket(2).
    pub fn new(pid: i32) -> io::Result<Passage> {
        let process = Process::new(pid.cast_unsigned());
        let theirs = std::fs::read_link(process.path("ns/net"))?;
        let own = std::fs::File::open("/proc/thread-self/ns/net")?;
        let is_elsewhere = std::fs::read_link("/proc/thread-self/ns/net")? != theirs;
        if is_elsewhere {
            // The calling thread alone changes its namespace.
            setns(File::open(process.path("ns/net"))?, CloneFlags::CLONE_NEWNET)?;
        }
        let made = Passage::listen(pid);
        if is_elsewhere {
            setns(own, CloneFlags::CLONE_NEWNET)?;
        }
        made
    }

    fn listen(pid: i32) -> io::Result<Passage> {
        let mut random = [0; 16];
        // SAFETY: getrandom(2) writes at most 16 bytes to a live array.
        if unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) } != random.len() as isize {
            return Err(io::Error::last_os_error());
        }
        let name = format!("hugelift-{:032x}", u128::from_ne_bytes(random)).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        // A connection is there before accept(2) is called; nothing waits for one.
        listener.set_nonblocking(true)?;
        Ok(Passage { pid, listener, name })
    }

    /// Gives the thread a descriptor for `file`. Returns it, or a negative errno.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn pass(&self, lent: &mut Lent, file: &File) -> Result<i64, Error> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let args = [0, SCRATCH_BYTES, prot as u64, flags as u64, u64::MAX, 0];
        let scratch = lent.call(libc::SYS_mmap, args)?;
        if scratch < 0 {
            return Ok(scratch);
        }
        let got = self.receive(lent, scratch as u64, file);
        lent.call(libc::SYS_munmap, [scratch as u64, SCRATCH_BYTES, 0, 0, 0, 0])?;
        got
    }

    fn receive(&self, lent: &mut Lent, scratch: u64, file: &File) -> Result<i64, Error> {
        let (bytes, name_bytes) = self.arguments(scratch);
        if let Err(error) = lent.write(Addr(scratch), &bytes) {
            return Ok(negative(&error));
        }
        // Somebody else may have filled the queue of the socket: do not wait for a place in it.
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        let socket = lent.call(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0, 0, 0, 0])?;
        if socket < 0 {
            return Ok(socket);
        }
        let args = [socket as u64, scratch + NAME_AT, name_bytes, 0, 0, 0];
        let mut got = lent.call(libc::SYS_connect, args)?;
        if got >= 0 {
            got = match self.send(file) {
                Ok(()) => {
                    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
                    lent.call(libc::SYS_recvmsg, [socket as u64, scratch, flags, 0, 0, 0])?
                }
                Err(error) => negative(&error),
            };
        }
        lent.call(libc::SYS_close, [socket as u64, 0, 0, 0, 0, 0])?;
        if got < 0 {
            return Ok(got);
        }
        // Without a free descriptor the kernel delivers the message without one.
        let length = memory::read_array(self.pid, Addr(scratch + CONTROL_AT)).map(u64::from_ne_bytes);
        let descriptor = memory::read_array(self.pid, Addr(scratch + DESCRIPTOR_AT)).map(i32::from_ne_bytes);
        match (length, descriptor) {
            (Ok(1..), Ok(fd @ 0..)) => Ok(i64::from(fd)),
            _ => Ok(i64::from(-libc::EMFILE)),
        }
    }

    /// Returns the arguments of connect(2) and recvmsg(2) as they are at `scratch`, and the length of the
    /// socket's address.
    fn arguments(&self, scratch: u64) -> (Vec<u8>, u64) {
        let mut bytes = vec![0; NAME_AT as usize];
        let mut put = |at: u64, value: u64| {
            bytes[at as usize..at as usize + 8].copy_from_slice(&value.to_ne_bytes());
        };
        // struct msghdr: name, its length, iov, iovlen, control, controllen, flags.
        put(16, scratch + IOVEC_AT);
        put(24, 1);
        put(32, scratch + CONTROL_AT);
        put(40, CONTROL_BYTES);
        put(IOVEC_AT, scratch + BYTE_AT);
        put(IOVEC_AT + 8, 1);
        // struct sockaddr_un: an abstract name begins with a zero.
        bytes.extend((libc::AF_UNIX as u16).to_ne_bytes());
        bytes.push(0);
        bytes.extend(&self.name);
        let name_bytes = bytes.len() as u64 - NAME_AT;
        (bytes, name_bytes)
    }

    /// Sends the descriptor to the process that has just connected.
    fn send(&self, file: &File) -> io::Result<()> {
        const MOST: u32 = 64;
        for _ in 0..MOST {
            let (peer, _) = self.listener.accept()?;
            // Another process may have found the name in /proc/net/unix.
            if getsockopt(&peer, PeerCredentials)?.pid() != self.pid {
                continue;
            }
            let (byte, files) = ([IoSlice::new(b"f")], [file.as_raw_fd()]);
            let message = [ControlMessage::ScmRights(&files)];
            sendmsg::<()>(peer.as_raw_fd(), &byte, &message, MsgFlags::MSG_NOSIGNAL, None)?;
            return Ok(());
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

fn negative(error: &io::Error) -> i64 {
    -i64::from(error.raw_os_error().unwrap_or(libc::EIO))
}
