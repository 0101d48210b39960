// SPDX-License-Identifier: Apache-2.0
//! Puts a helper beside the calling process, which is about to become the program.
//!
//! The helper is no child of the program: it is forked twice, and the intermediate process is
//! waited for. Where an orphan would come back (pid 1 of a namespace, a subreaper) it is
//! a child that sends no signal and that wait(2) does not see without `__WALL`, and the
//! program's restore frame waits for it.

pub mod base;
pub mod bypass;
pub mod guard;
pub mod helper;
pub mod inside;
pub mod lookup;
pub mod preload;
pub mod program;
pub mod seccomp;
pub mod stack;

use crate::launch::bypass::Bypass;
use crate::launch::helper::{LiftHooks, attend};
use crate::machine::yama;
use crate::proc::procfs::Process;
use crate::trace::ptrace::{self, Running};
use nix::sys::socket::{MsgFlags, send};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// How long the helper may take until it traces the launcher.
const PATIENCE: Duration = Duration::from_secs(30);

/// A helper that traces the calling process.
#[derive(Debug)]
pub struct Helper {
    pid: i32,
    /// It is a child of the calling process.
    adopted: bool,
}

/// Starts the helper and waits until it traces the calling process, which should then
/// exec at once. `keep` are file descriptors that the helper needs; `adopts` is what
/// [`adopts_orphans`] says.
///
/// # Errors
/// Why the program must be started without.
pub fn start_helper(hooks: impl LiftHooks, keep: &[RawFd], adopts: bool) -> Result<Helper, Bypass> {
    if has_foreign_children()? {
        return Err(Bypass::ForeignPidNamespace);
    }
    let restricted = yama::scope() == 1;
    let (ours, theirs) = socketpair()?;
    let (mut ours, mut theirs) = (Some(ours), Some(theirs));
    let target = std::process::id().cast_signed();
    let mut hooks = Some(hooks);
    let mut life = || {
        drop(ours.take());
        if let (Some(socket), Some(hooks)) = (theirs.take(), hooks.take()) {
            help(target, adopts, socket, restricted, keep, hooks);
        }
    };
    // No signal at its end: a SIGCHLD that the caller blocks would stay pending for the program.
    let helper = match adopts {
        true => fork(0)?,
        false => fork_twice(&mut life)?,
    };
    if helper == Some(0) {
        life();
        exit_now();
    }
    drop(theirs.take());
    let (Some(ours), Some(pid)) = (ours, helper) else { return Err(Bypass::HelperDied) };
    let helper = Helper { pid, adopted: adopts };
    match handshake(File::from(ours), restricted, pid) {
        Ok(()) => Ok(helper),
        // It has ended, and its number may be another process's by now.
        Err(why @ (Bypass::HelperDied | Bypass::NotTraceable { .. })) => {
            if adopts {
                wait_for(pid);
            }
            Err(why)
        }
        Err(why) => {
            helper.dismiss();
            Err(why)
        }
    }
}

impl Helper {
    /// Ends it. When this returns the calling process is not traced any more, so that it may become
    /// a program that must not be.
    pub fn dismiss(self) {
        // SAFETY: kill(2) touches no memory. The process has not ended: it is our child and nobody has
        // waited for it, or it holds the socket or traces us.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        if self.adopted {
            return wait_for(self.pid);
        }
        // Its end is ours to wait for only by what it leaves behind: a process without a tracer.
        let until = Instant::now() + PATIENCE;
        while Process::OWN.status().is_ok_and(|status| status.tracer.is_some_and(|tracer| tracer != 0))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether an orphan in this process's family would become its child.
pub fn adopts_orphans() -> bool {
    let mut subreaper: libc::c_int = 0;
    // SAFETY: prctl(2), PR_GET_CHILD_SUBREAPER: writes one int through the pointer.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut subreaper) };
    std::process::id() == 1 || subreaper != 0
}

/// Whether a child would be born into another pid namespace (unshare(2), CLONE_NEWPID).
fn has_foreign_children() -> Result<bool, Bypass> {
    let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The second link cannot be read before that namespace has a first process.
    match link("pid") {
        Some(own) => Ok(link("pid_for_children") != Some(own)),
        // The helper will read the program's; what is wrong with /proc shows in our own.
        None => Ok(Process::OWN.status().map(|_| false)?),
    }
}

fn socketpair() -> Result<(OwnedFd, OwnedFd), Bypass> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| Bypass::Resources { what: "socketpair", source: e.into() })
}

/// Addresses for the stack of the one intermediate, which becomes the helper's; memory only as it
/// is used.
const STACK_BYTES: usize = 8 << 20;

/// What the intermediate process has in common with the launcher.
struct Intermediate<'a> {
    /// What the helper does.
    life: &'a mut dyn FnMut(),
    helper: Option<i32>,
}

/// Forks a process that forks the helper, which does `life` and ends; returns the helper's pid,
/// `None` if there is none.
///
/// The intermediate process borrows the launcher's memory, as a child of vfork(2) does: to copy the page
/// tables twice would take the launcher longer than most of what it does.
pub(crate) fn fork_twice(life: &mut dyn FnMut()) -> Result<Option<i32>, Bypass> {
    let failed = |what| Bypass::Resources { what, source: io::Error::last_os_error() };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: mmap(2) at an address of the kernel's choice touches nothing of ours.
    let stack = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, prot, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return Err(failed("mmap"));
    }
    let mut intermediate = Intermediate { life, helper: None };
    // SAFETY: the end of what was mapped just now, and aligned as it is.
    let top = unsafe { stack.byte_add(STACK_BYTES) };
    let uncounted = Uncounted::begin();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | uncounted.as_ref().map_or(0, |_| libc::SIGCHLD);
    // SAFETY: clone(2): the child has a stack of its own, and we wait until it has ended; so
    // `intermediate` lives, and nobody else uses it meanwhile. This process has one thread.
    let child = unsafe { libc::clone(fork_helper, top, flags, (&raw mut intermediate).cast()) };
    let result = if child < 0 { Err(failed("fork")) } else { Ok(intermediate.helper) };
    // SAFETY: munmap(2) of what was mapped above, on which nobody runs any more: the helper
    // has its own copy.
    unsafe { libc::munmap(stack, STACK_BYTES) };
    if child > 0 {
        wait_for(child);
    }
    drop(uncounted);
    result
}

/// While this lives, a child that ends is not counted among the children whose use of the machine
/// getrusage(2) adds up for the program: the kernel removes it at once, as SIGCHLD is ignored, and
/// sends no signal.
struct Uncounted(libc::sigaction);

impl Uncounted {
    /// `None` where the program would lose something: a SIGCHLD that is pending is discarded when the
    /// signal is ignored, and the end of a child that this process had before is not reported.
    fn begin() -> Option<Uncounted> {
        // SAFETY: zeros are valid for both structures. waitid(2), sigpending(2) and sigaction(2) write
        // to what lives through the calls, and nothing is waited for.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let any = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
            let has_no_child = libc::waitid(libc::P_ALL, 0, &raw mut info, any) == -1
                && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
            let mut pending: libc::sigset_t = std::mem::zeroed();
            if !has_no_child
                || libc::sigpending(&raw mut pending) != 0
                || libc::sigismember(&raw const pending, libc::SIGCHLD) != 0
            {
                return None;
            }
            let mut ignored: libc::sigaction = std::mem::zeroed();
            ignored.sa_sigaction = libc::SIG_IGN;
            let mut before: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGCHLD, &raw const ignored, &raw mut before) == 0)
                .then(|| Uncounted(before))
        }
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        // SAFETY: sigaction(2) reads what it gave us itself.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.0, ptr::null_mut()) };
    }
}

/// The one intermediate.
extern "C" fn fork_helper(intermediate: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `fork_twice` passes its own, and waits.
    let intermediate = unsafe { &mut *intermediate.cast::<Intermediate>() };
    match fork(libc::SIGCHLD) {
        Ok(Some(0)) => (intermediate.life)(),
        Ok(helper) => intermediate.helper = helper,
        // That there is none says enough.
        Err(_) => {}
    }
    exit_now()
}

/// clone(2) without shared memory, with the signal that its end will send: the child's pid, 0 in
/// the child.
fn fork(end_signal: i32) -> Result<Option<i32>, Bypass> {
    let zero: libc::c_long = 0;
    // SAFETY: clone(2) with no stack behaves as fork(2). This process has one thread, so
    // the child may go on as usual.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(end_signal), zero, zero, zero, zero) };
    if pid < 0 {
        return Err(Bypass::Resources { what: "fork", source: io::Error::last_os_error() });
    }
    Ok(Some(pid as i32))
}

fn wait_for(child: i32) {
    let mut status = 0;
    // SAFETY: wait4(2): status is a live i32, rusage may be null.
    while unsafe { libc::wait4(child, &raw mut status, libc::__WALL, std::ptr::null_mut()) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

fn exit_now() -> ! {
    // SAFETY: _exit(2) ends the process without running what the launcher has registered.
    unsafe { libc::_exit(0) }
}

const READY: u8 = 0;

/// The launcher's side: permits the helper to trace us if need be, waits until it does.
fn handshake(mut socket: File, restricted: bool, helper: i32) -> Result<(), Bypass> {
    if restricted {
        set_ptracer(helper);
        // SIGPIPE, should the helper be gone, would be our end.
        send(socket.as_raw_fd(), &[READY], MsgFlags::MSG_NOSIGNAL).map_err(|_| Bypass::HelperDied)?;
    }
    let mut answer = [0; 4];
    await_answer(&socket)?;
    socket.read_exact(&mut answer).map_err(|_| Bypass::HelperDied)?;
    match i32::from_ne_bytes(answer) {
        0 => Ok(()),
        errno => {
            if restricted {
                set_ptracer(0);
            }
            let source = io::Error::from_raw_os_error(errno);
            let hint = yama::hint(&source);
            Err(Bypass::NotTraceable { source, hint })
        }
    }
}

/// Waits until there is something to read from `socket`, or its other end is closed.
fn await_answer(socket: &File) -> Result<(), Bypass> {
    let patience = crate::trace::faultpoint::patience(PATIENCE);
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let millis = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: poll(2) of one descriptor; the structure lives through the call.
        match unsafe { libc::poll(&raw mut poll, 1, millis) } {
            0 if left.is_zero() => return Err(Bypass::HelperLate { seconds: patience.as_secs() }),
            0 => {}
            n if n > 0 => return Ok(()),
            _ => {
                let source = io::Error::last_os_error();
                if source.kind() != io::ErrorKind::Interrupted {
                    return Err(Bypass::Resources { what: "poll", source });
                }
            }
        }
    }
}

/// prctl(2), PR_SET_PTRACER: lets `pid` trace us under Yama's mode 1. The permission ends
/// with that process.
fn set_ptracer(pid: i32) {
    // SAFETY: prctl(2) with plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid.cast_unsigned()), 0, 0, 0) };
}

/// The helper's life. Where tracing is `restricted`, it waits for the launcher's permission.
fn help(
    target: i32,
    adopted: bool,
    socket: OwnedFd,
    restricted: bool,
    keep: &[RawFd],
    mut hooks: impl LiftHooks,
) {
    // Out of the terminal's reach: ctrl-C is the program's.
    // SAFETY: setsid(2) and getpid(2) take no arguments.
    let own = unsafe {
        libc::setsid();
        libc::getpid()
    };
    // SAFETY: signal(2) without a handler. The launcher may have forked us while it ignored SIGCHLD. A
    // file that would become too large (`ulimit -f`) is an error, not the helper's end.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    close_all_but(&[&[2, socket.as_raw_fd()], keep].concat());
    let mut socket = File::from(socket);
    let mut permit = [0];
    if restricted && socket.read_exact(&mut permit).is_err() {
        return;
    }
    if let Some(running) = send_answer(socket, ptrace::seize(target)) {
        match attend(running, adopted.then_some(own), &mut hooks) {
            // It failed to exec, or was killed: it has told so itself.
            Ok(()) => {}
            Err(ptrace::Error::Vanished(_)) => return,
            Err(error) => {
                hooks.bypass(&error.into());
                return;
            }
        }
        crate::trace::faultpoint::finish();
        if !adopted {
            hooks.afterwards();
        }
    }
}

/// Tells the process at the other end whether it is traced now, 0 or an errno.
pub(crate) fn send_answer(mut socket: File, seized: Result<Running, ptrace::Error>) -> Option<Running> {
    let (answer, running) = match seized {
        Ok(running) => (0, Some(running)),
        Err(ptrace::Error::Os { source, .. }) => (source.raw_os_error().unwrap_or(libc::EPERM), None),
        Err(_) => (libc::ESRCH, None),
    };
    socket.write_all(&i32::to_ne_bytes(answer)).ok()?;
    running
}

/// What the program's files are is none of the helper's business: a pipe's reader should
/// not wait for it.
pub(crate) fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.cast_unsigned()).collect();
    keep.sort_unstable();
    let mut from = 0;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if from < fd {
            // SAFETY: close_range(2) closes descriptors that nothing in the helper uses:
            // those in use are in `keep`. Kernels before 5.9 refuse; the files then stay
            // open for the helper's short life.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}
