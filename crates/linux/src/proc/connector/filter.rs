// SPDX-License-Identifier: Apache-2.0
//! The filter of the connector's socket (socket(7), SO_ATTACH_FILTER): events of single threads and of other kinds never
//! reach the receive buffer, and wake nobody.

use hugelift_core::proc_events::{ANSWER, EXEC, EXIT, KIND_AT, PROCESS_AT, THREAD_AT};
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_MISC, BPF_RET, BPF_TAX, BPF_W, BPF_X, sock_filter};
use nix::errno::Errno;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Lets through answers, and exec and exit of processes.
///
/// # Errors
/// errno(3) of setsockopt(2)
pub(super) fn attach(socket: BorrowedFd) -> Result<(), Errno> {
    let mut filter = program();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: setsockopt(2) reads the structure and the filter that it points to; both live through the call.
    let done = unsafe {
        let option = (&raw const program).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, option, size)
    };
    Errno::result(done).map(drop)
}

fn program() -> Vec<sock_filter> {
    let mut program = vec![load(KIND_AT)];
    program.extend(if_equal(ANSWER, vec![accept()]));
    program.extend(if_equal(EXEC, of_process()));
    program.extend(if_equal(EXIT, of_process()));
    program.push(refuse());
    program
}

/// Runs `then`, which does not return, if the word that was loaded is `value`.
fn if_equal(value: u32, then: Vec<sock_filter>) -> Vec<sock_filter> {
    // A load takes numbers of the network's byte order.
    let mut all = vec![op(BPF_JMP | BPF_JEQ | BPF_K, value.to_be(), 0, then.len() as u8)];
    all.extend(then);
    all
}

/// Accepts the message if its thread is the first of its process, and refuses it otherwise.
fn of_process() -> Vec<sock_filter> {
    let to_x = op(BPF_MISC | BPF_TAX, 0, 0, 0);
    vec![load(THREAD_AT), to_x, load(PROCESS_AT), op(BPF_JMP | BPF_JEQ | BPF_X, 0, 0, 1), accept(), refuse()]
}

fn load(at: usize) -> sock_filter {
    op(BPF_LD | BPF_W | BPF_ABS, at as u32, 0, 0)
}

/// Passes the whole message on.
fn accept() -> sock_filter {
    op(BPF_RET | BPF_K, u32::MAX, 0, 0)
}

fn refuse() -> sock_filter {
    op(BPF_RET | BPF_K, 0, 0, 0)
}

fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}
