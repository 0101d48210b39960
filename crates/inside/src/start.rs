// SPDX-License-Identifier: Apache-2.0
//! Before `main`: has the process lifted, if it is a child of a lifted program and worth it.
//!
//! ```text
//!   program   execve ==> loader ==> this --- stop ---------------- main
//!                                     |        |            ^
//!   hugelift ................... vfork, exec  seize -> lift, end
//! ```
//!
//! The program has been started as it would have been: whatever could fail has failed as it does.
//! All that it needs is mapped and relocated. The helper is forked twice and so is no child of
//! the program; both forks borrow the program's memory, as vfork(2) does.

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
/// For two children, one after the other, that call little.
const STACK_BYTES: usize = 32 << 10;

#[cfg_attr(loaded, unsafe(link_section = ".init_array"))]
#[used]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(environ) = libc::environ() else { return };
    // SAFETY: at the start there is one thread, and the C library has set it; or it is null.
    let array = unsafe { *environ };
    if array.is_null() || libc::auxiliary(AT_SECURE) != 0 {
        return;
    }
    // SAFETY: environ(7): an array of strings, its end a null pointer.
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
        // It was loaded for this program alone.
        _ => {
            let preload = environment.get(PRELOAD).map_or(&[][..], CStr::to_bytes);
            environment.remove(GUARD);
            if let Some(own) = own_length(preload) {
                environment.shorten(PRELOAD, own);
            }
        }
    }
}

/// Whether a value of [`STARTED`] means this process and this program.
fn is_this(value: &CStr) -> bool {
    let mut pid = [0; 21];
    let pid = decimal(sys::getpid(), &mut pid);
    let path = value.to_bytes().strip_prefix(pid).and_then(|rest| rest.strip_prefix(b" "));
    path.is_some_and(|path| program() == Some(path))
}

/// The path of the program, as execve(2) had it.
fn program<'a>() -> Option<&'a [u8]> {
    let name = libc::auxiliary(AT_EXECFN) as *const c_char;
    // SAFETY: the kernel's copy of the path, at the end of the stack (getauxval(3)).
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Bytes of this library's path, and what parts it from the next, at the beginning of a value of
/// `LD_PRELOAD`.
fn own_length(preload: &[u8]) -> Option<usize> {
    let end = preload.iter().position(|b| *b == b':').unwrap_or(preload.len());
    preload[..end].ends_with(LIBRARY.as_bytes()).then_some((end + 1).min(preload.len()))
}

/// What the children that become the helper share with us.
struct Between {
    exe: *const c_char,
    argv: [*const c_char; 5],
    envp: *const *const c_char,
    /// The helper's end of the socket.
    socket: usize,
    mask: u64,
    stack: *mut u8,
    helper: isize,
}

/// Starts hugelift beside this process and lets it lift us. If anything is amiss, nothing happens.
fn ask(exe: &CStr, envp: *mut *const c_char) {
    let pid = sys::getpid();
    // There the helper would come back to us as a child.
    if pid == 1 || sys::is_subreaper() {
        return;
    }
    let Ok(stack) = sys::map(0, 2 * STACK_BYTES, sys::MAP_NORESERVE) else { return };
    if let Some((ours, theirs)) = sys::socketpair() {
        // Neither a handler of the program's in a child that borrows its memory, nor a SIGCONT
        // that is not ours.
        let mask = sys::set_mask(sys::SIG_BLOCK_ALL);
        let had_sigcont = sys::pending() & 1 << (sys::SIGCONT - 1) != 0;
        let (mut pid_text, mut fd_text) = ([0; 21], [0; 21]);
        decimal(pid, &mut pid_text);
        decimal(theirs, &mut fd_text);
        let mut inside = [0u8; INSIDE.len() + 1];
        inside[..INSIDE.len()].copy_from_slice(INSIDE.as_bytes());
        let mut between = Between {
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
            clone_onto(CLONE_VM | CLONE_VFORK, top, fork_helper, (&raw mut between).cast())
        };
        if let Ok(child @ 1..) = usize::try_from(child) {
            sys::wait_for(child);
        }
        sys::close(theirs);
        if let Ok(helper @ 1..) = usize::try_from(between.helper) {
            wait(ours, helper, mask);
        }
        if !had_sigcont {
            sys::take_signal(sys::SIGCONT);
        }
        sys::close(ours);
        sys::set_mask(mask);
    }
    // SAFETY: nobody runs on it any more.
    unsafe { sys::unmap(stack, 2 * STACK_BYTES) };
}

/// How long a helper may take to answer. It takes a few milliseconds where nothing is wrong.
const PATIENCE_NANOSECONDS: u64 = 10_000_000_000;

/// Lets the helper trace us, and stops for it once it does. Without an answer in time, the program
/// goes on as it is.
///
/// Nobody borrows our memory any more: while we wait, the signals arrive that the program lets through
/// (`mask`), so that whoever wants to end it can.
fn wait(socket: usize, helper: usize, mask: u64) {
    sys::set_ptracer(helper);
    let mut answer = [0; 4];
    let ready = Ready { stop: stop_address() };
    // The helper writes its answer as a whole.
    if sys::send(socket, &ready.to_bytes())
        && sys::wait_readable(socket, PATIENCE_NANOSECONDS, mask)
        && sys::read_all(socket, &mut answer)
        && answer == [0; 4]
    {
        stop();
    }
    sys::set_ptracer(0);
}

/// The one between: it leaves no child to the program.
unsafe extern "C" fn fork_helper(data: *mut u8) -> ! {
    // SAFETY: `ask` passes its own, and waits.
    unsafe {
        let between = data.cast::<Between>();
        let top = (*between).stack.add(STACK_BYTES);
        (*between).helper = clone_onto(CLONE_VM | CLONE_VFORK | SIGCHLD, top, become_helper, data);
    }
    sys::exit()
}

unsafe extern "C" fn become_helper(data: *mut u8) -> ! {
    // SAFETY: as above; the first half of the stack is this child's alone.
    unsafe {
        let between = &*data.cast::<Between>();
        sys::keep_over_exec(between.socket);
        sys::set_mask(between.mask);
        sys::execve(CStr::from_ptr(between.exe), between.argv.as_ptr(), between.envp);
    }
    sys::exit()
}

/// Writes a number as text that ends in NUL; the text without it.
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
