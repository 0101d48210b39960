// SPDX-License-Identifier: Apache-2.0
//! Asks the kernel what the threads of a process waited for, by taskstats (Documentation/accounting/taskstats.rst in
//! Linux).
//!
//! For a process the kernel adds up all its threads, those that have ended too: so one question is enough for any number
//! of threads. (Only what is no delay, as page faults, is of single threads alone.)

use super::netlink::{Answer, Request, answer, attribute, half};
use hugelift_core::cost::taskstats::{Waits, parse};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

/// include/uapi/linux/taskstats.h
const FAMILY: &[u8] = b"TASKSTATS\0";
const CMD_GET: u8 = 1;
const ATTR_PID: u16 = 1;
const ATTR_TGID: u16 = 2;
const TYPE_STATS: u16 = 3;
const TYPE_AGGR_PID: u16 = 4;
const TYPE_AGGR_TGID: u16 = 5;

/// The kernel answers at once; if it does not, nothing waits for it.
const PATIENCE_S: i64 = 2;
/// The most messages that are read for one answer.
const MOST: usize = 16;

/// Why the kernel does not say what a process waited for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The process or thread does not exist.
    #[error("there is no such process")]
    Gone,
    /// This user may not ask.
    #[error("taskstats: EPERM: only CAP_NET_ADMIN may ask what a process waited for: be root")]
    Denied,
    /// The kernel has no taskstats.
    #[error("this kernel has no taskstats (CONFIG_TASKSTATS)")]
    Missing,
    /// The fields of this version of the struct are at unknown places.
    #[error("the waits of taskstats version {0} cannot be read")]
    Version(u16),
    /// Anything else.
    #[error("taskstats: {0}")]
    Os(Errno),
}

/// A socket to the kernel.
#[derive(Debug)]
pub(super) struct Taskstats {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Taskstats {
    /// Opens the socket and asks for the number of the family.
    pub(super) fn open() -> Result<Taskstats, Refusal> {
        let refused = |errno| match errno {
            Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT => Refusal::Missing,
            errno => Refusal::Os(errno),
        };
        let generic = SockProtocol::NetlinkGeneric;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, generic);
        let socket = socket.map_err(refused)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_S)).map_err(refused)?;
        let mut taskstats =
            Taskstats { socket, family: libc::GENL_ID_CTRL as u16, sequence: 0, buffer: vec![0; 16 << 10] };
        let (command, name) = (libc::CTRL_CMD_GETFAMILY as u8, libc::CTRL_ATTR_FAMILY_NAME as u16);
        let id = libc::CTRL_ATTR_FAMILY_ID as u16;
        let found = taskstats.ask(command, name, FAMILY, |found| half(attribute(found, id)?, 0));
        taskstats.family = match found {
            Err(Errno::ENOENT) => return Err(Refusal::Missing),
            other => other.map_err(refused)?,
        };
        Ok(taskstats)
    }

    /// Returns what all threads of a process waited for since they were started.
    pub(super) fn of_process(&mut self, pid: u32) -> Result<Waits, Refusal> {
        self.waits(ATTR_TGID, TYPE_AGGR_TGID, pid)
    }

    /// Returns the same of one thread.
    pub(super) fn of_thread(&mut self, tid: u32) -> Result<Waits, Refusal> {
        self.waits(ATTR_PID, TYPE_AGGR_PID, tid)
    }

    fn waits(&mut self, which: u16, aggregate: u16, id: u32) -> Result<Waits, Refusal> {
        let found = self.ask(CMD_GET, which, &id.to_ne_bytes(), |found| {
            Some(parse(attribute(attribute(found, aggregate)?, TYPE_STATS)?))
        });
        match found {
            Ok(waits) => waits.map_err(Refusal::Version),
            Err(Errno::ESRCH) => Err(Refusal::Gone),
            Err(Errno::EPERM | Errno::EACCES) => Err(Refusal::Denied),
            Err(errno) => Err(Refusal::Os(errno)),
        }
    }

    /// Sends a request and returns what `read` finds in the answer.
    fn ask<T>(
        &mut self,
        command: u8,
        attribute: u16,
        payload: &[u8],
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = Request { family: self.family, command, attribute, payload };
        send(self.socket.as_raw_fd(), &request.bytes(self.sequence), MsgFlags::empty())?;
        for _ in 0..MOST {
            let length = match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            match answer(&self.buffer[..length], self.sequence) {
                Answer::Attributes(found) => return read(found).ok_or(Errno::EBADMSG),
                Answer::Failed(errno) => return Err(errno),
                Answer::Other => {}
            }
        }
        Err(Errno::EBADMSG)
    }
}
