// SPDX-License-Identifier: Apache-2.0
//! Makes this kernel look like an older one: a seccomp filter under which chosen system calls
//! fail as if they did not exist (seccomp(2)). Hugelift, its helper and the program inherit it.

use libc::{c_long, sock_filter, sock_fprog};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A call that fails.
#[derive(Clone, Copy)]
pub struct Mask {
    pub call: c_long,
    /// Only if this argument has this value.
    pub argument: Option<(u32, u32)>,
    pub errno: i32,
}

impl Mask {
    pub const fn call(call: c_long, errno: i32) -> Mask {
        Mask { call, argument: None, errno }
    }

    pub const fn argument(call: c_long, index: u32, value: u32, errno: i32) -> Mask {
        Mask { call, argument: Some((index, value)), errno }
    }
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
/// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARGUMENTS: u32 = 16;

fn filter(masks: &[Mask]) -> Vec<sock_filter> {
    let op = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    let mut program = Vec::new();
    for mask in masks {
        let fail = op(RETURN, libc::SECCOMP_RET_ERRNO | mask.errno.cast_unsigned(), 0);
        program.push(op(LOAD, NUMBER, 0));
        let number = u32::try_from(mask.call).unwrap();
        match mask.argument {
            None => program.extend([op(JUMP_IF_EQUAL, number, 1), fail]),
            // The lower half of the argument: both machines are little-endian.
            Some((index, value)) => program.extend([
                op(JUMP_IF_EQUAL, number, 3),
                op(LOAD, ARGUMENTS + 8 * index, 0),
                op(JUMP_IF_EQUAL, value, 1),
                fail,
            ]),
        }
    }
    program.push(op(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    program
}

/// Makes `command` run under these masks.
pub fn under<'a>(command: &'a mut Command, masks: &[Mask]) -> &'a mut Command {
    let mut program = filter(masks);
    let install = move || {
        let arg = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: prctl(2), PR_SET_SECCOMP reads the program, which lives in this closure.
        let rc = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const arg, 0, 0)
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) }
}
