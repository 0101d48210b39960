// SPDX-License-Identifier: Apache-2.0
//! Before `main`: asks hugelift to lift the process, if it is a child of a lifted program and worth it.
//!
//! ```text
//!   program   execve ==> loader ==> this --- stop ---------------- main
//!                                     |        |            ^
//!   hugelift ................... vfork, exec  seize -> lift, end
//! ```
//!
//! The program has been started in the usual way, so one that cannot start fails exactly as without hugelift.
//! All objects are mapped and relocated. The helper is forked twice, so it is not a child of the program;
//! both forks borrow the program's memory, as vfork(2) does.

use crate::arch::{clone_onto, stop, stop_address};
use crate::environment::Environment;
use crate::names::{CHILDREN, EXE, GUARD, INSIDE, LIBRARY, PRELOAD, Ready, STARTED};
use crate::objects::Worth;
use crate::{libc, sys};
use core::ffi::{CStr, c_char, c_ulong};

const AT_SECURE: c_ulong = 23;
const AT_EXECFN: c_ulong = 31;
const CLONE_VM: usize = 0x100;
const CLONE_VFORK: usize = 0x4000;
const SIGCHLD: usize = 17;
/// The stack of one child; each makes few calls.
const STACK_BYTES: usize = 32 << 10;

#[cfg_attr(loaded, unsafe(link_section = ".init_array"))]
#[used]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(environ) = libc::environ() else { return };
    // SAFETY: the C library has set it, or it is null. There is one thread, so nothing changes it.
    let array = unsafe { *environ };
    if array.is_null() || libc::auxiliary(AT_SECURE) != 0 {
        return;
    }
    // SAFETY: environ(7): an array of strings that a null pointer ends.
    let environment = unsafe { Environment::new(array) };
    let pages = environment.get(GUARD);
    crate::fork::guard(pages.and_then(|p| core::str::from_utf8(p.to_bytes()).ok()?.parse().ok()));
    let started = environment.get(STARTED).is_some_and(is_this);
    environment.remove(STARTED);
    match (environment.get(CHILDREN), environment.get(EXE)) {
        (Some(children), Some(exe)) => {
            let worth = Worth::parse(children.to_bytes());
            if !started && program() != Some(exe.to_bytes()) && worth.is_some_and(Worth::is_met) {
                ask(exe, array);
            }
        }
        // The library was loaded for this program alone.
        _ => {
            let preload = environment.get(PRELOAD).map_or(&[][..], CStr::to_bytes);
            environment.remove(GUARD);
            if let Some(own) = own_length(preload) {
                environment.shorten(PRELOAD, own);
            }
        }
    }
}

/// Returns whether a value of [`STARTED`] names this process and this program.
fn is_this(value: &CStr) -> bool {
    let mut pid = [0; 21];
    let pid = decimal(sys::getpid(), &mut pid);
    let path = value.to_bytes().strip_prefix(pid).and_then(|rest| rest.strip_prefix(b" "));
    path.is_some_and(|path| program() == Some(path))
}

/// Returns the program's path as execve(2) got it.
fn program<'a>() -> Option<&'a [u8]> {
    let name = libc::auxiliary(AT_EXECFN) as *const c_char;
    // SAFETY: the kernel's copy of the path, at the end of the stack (getauxval(3)).
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Returns the length of this library's path and its separator, if a value of `LD_PRELOAD` begins with
/// them.
fn own_length(preload: &[u8]) -> Option<usize> {
    let end = preload.iter().position(|b| *b == b':').unwrap_or(preload.len());
    preload[..end].ends_with(LIBRARY.as_bytes()).then_some((end + 1).min(preload.len()))
}

/// The data that the intermediate process and the helper share with the program until the helper's execve(2).
struct Intermediate {
    exe: *const c_char,
    argv: [*const c_char; 5],
    envp: *const *const c_char,
    /// The helper's end of the socket.
    socket: usize,
    mask: u64,
    stack: *mut u8,
    helper: isize,
}

/// Starts a helper and lets it lift this program. If that fails, the program goes on as it is.
fn ask(exe: &CStr, envp: *mut *const c_char) {
    let pid = sys::getpid();
    // Orphans become children of such a process, and so would the helper.
    if pid == 1 || sys::is_subreaper() {
        return;
    }
    let Ok(stack) = sys::map(0, 2 * STACK_BYTES, sys::MAP_NORESERVE) else { return };
    if let Some((ours, theirs)) = sys::socketpair() {
        // No handler of the program may run in a child that borrows its memory, and no SIGCONT of
        // another process may be taken for ours.
        let mask = sys::set_mask(sys::SIG_BLOCK_ALL);
        let had_sigcont = sys::pending() & 1 << (sys::SIGCONT - 1) != 0;
        let (mut pid_text, mut fd_text) = ([0; 21], [0; 21]);
        decimal(pid, &mut pid_text);
        decimal(theirs, &mut fd_text);
        let mut inside = [0u8; INSIDE.len() + 1];
        inside[..INSIDE.len()].copy_from_slice(INSIDE.as_bytes());
        let mut intermediate = Intermediate {
            exe: exe.as_ptr(),
            argv: [
                exe.as_ptr(),
                inside.as_ptr().cast(),
                pid_text.as_ptr().cast(),
                fd_text.as_ptr().cast(),
                core::ptr::null(),
            ],
            envp,
            socket: theirs,
            mask,
            stack: stack as *mut u8,
            helper: -1,
        };
        // SAFETY: the second half of what was mapped; we wait until the child has ended.
        let child = unsafe {
            let top = (stack as *mut u8).add(2 * STACK_BYTES);
            clone_onto(CLONE_VM | CLONE_VFORK, top, fork_helper, (&raw mut intermediate).cast())
        };
        if let Ok(child @ 1..) = usize::try_from(child) {
            sys::wait_for(child);
        }
        sys::close(theirs);
        if let Ok(helper @ 1..) = usize::try_from(intermediate.helper) {
            wait(ours, helper, mask);
        }
        if !had_sigcont {
            sys::take_signal(sys::SIGCONT);
        }
        sys::close(ours);
        sys::set_mask(mask);
    }
    // SAFETY: no process runs on it any more.
    unsafe { sys::unmap(stack, 2 * STACK_BYTES) };
}

/// How long the program waits for the helper's answer, which usually takes a few milliseconds.
const PATIENCE_NANOSECONDS: u64 = 10_000_000_000;

/// Permits the helper to trace the program, and stops once it does. Without an answer in time, the
/// program goes on as it is.
///
/// No child borrows the program's memory any more. So signals that the program's own `mask` lets through
/// arrive during the wait, and can end the program.
fn wait(socket: usize, helper: usize, mask: u64) {
    sys::set_ptracer(helper);
    let mut answer = [0; 4];
    let ready = Ready { stop: stop_address() };
    // The helper writes its answer by one call.
    if sys::send(socket, &ready.to_bytes())
        && sys::wait_readable(socket, PATIENCE_NANOSECONDS, mask)
        && sys::read_all(socket, &mut answer)
        && answer == [0; 4]
    {
        stop();
    }
    sys::set_ptracer(0);
}

/// Forks the helper in the intermediate process, and ends. So the helper is not a child of the program.
unsafe extern "C" fn fork_helper(data: *mut u8) -> ! {
    // SAFETY: `ask` passes a live `Intermediate`, and waits.
    unsafe {
        let intermediate = data.cast::<Intermediate>();
        let top = (*intermediate).stack.add(STACK_BYTES);
        (*intermediate).helper = clone_onto(CLONE_VM | CLONE_VFORK | SIGCHLD, top, become_helper, data);
    }
    sys::exit()
}

/// Becomes the helper, by execve(2).
unsafe extern "C" fn become_helper(data: *mut u8) -> ! {
    // SAFETY: as above; the first half of the stack is this child's alone.
    unsafe {
        let intermediate = &*data.cast::<Intermediate>();
        sys::keep_over_exec(intermediate.socket);
        sys::set_mask(intermediate.mask);
        sys::execve(CStr::from_ptr(intermediate.exe), intermediate.argv.as_ptr(), intermediate.envp);
    }
    sys::exit()
}

/// Writes a number as text that ends in NUL; returns the text without the NUL.
fn decimal(number: usize, text: &mut [u8; 21]) -> &[u8] {
    let mut digits = 1;
    let mut rest = number / 10;
    while rest > 0 {
        digits += 1;
        rest /= 10;
    }
    let mut rest = number;
    for byte in text[..digits].iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text[digits] = 0;
    &text[..digits]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_text() {
        for number in [0, 7, 10, 4_194_304, usize::MAX] {
            let mut text = [b'x'; 21];
            assert_eq!(decimal(number, &mut text), number.to_string().as_bytes());
            assert_eq!(CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap(), number.to_string());
        }
    }

    #[test]
    fn what_of_ld_preload_is_ours() {
        assert_eq!(own_length(b"/a/libhugelift_inside.so"), Some(24));
        assert_eq!(own_length(b"/a/libhugelift_inside.so:/b.so"), Some(25));
        assert_eq!(own_length(b"/b.so:/a/libhugelift_inside.so"), None);
        assert_eq!(own_length(b""), None);
    }
}
