// SPDX-License-Identifier: Apache-2.0
//! Starts a helper for the calling process, which is about to become the program.
//!
//! The helper is not a child of the program: the launcher forks an intermediate process, which forks the
//! helper and ends. Where orphans become children of the program (pid 1 of a namespace, a subreaper), the
//! helper is a direct child whose end sends no signal and which wait(2) does not see without `__WALL`. A
//! wait4(2) for it is then chained before the program's restore frame.

pub mod bypass;
pub mod descriptors;
pub mod examine;
pub mod guard;
pub mod guard_check;
pub mod guard_file;
pub mod helper;
pub mod seccomp;
pub mod stack;

use crate::job::LiftJob;
use crate::launch::bypass::Bypass;
use crate::launch::descriptors::close_all_but;
use crate::launch::helper::attend;
use hugelift_inject::ptrace::{self, Running};
use hugelift_linux::machine::yama;
use hugelift_linux::proc::procfs::Process;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// How long the helper may take until it traces the launcher.
const PATIENCE: Duration = Duration::from_secs(30);

/// A helper that traces the calling process.
#[derive(Debug)]
pub struct Helper {
    pid: i32,
    /// It is a child of the calling process.
    is_child: bool,
}

/// Starts the helper and waits until it traces the calling process, which should then call execve(2) at
/// once. `keep` are file descriptors that the helper needs; `adopts` is the result of
/// [`adopts_orphans`].
///
/// # Errors
/// The reason why the program must be started without hugelift.
pub fn start_helper(job: &mut LiftJob, keep: &[RawFd], adopts: bool) -> Result<Helper, Bypass> {
    if has_foreign_children()? {
        return Err(Bypass::ForeignPidNamespace);
    }
    let restricted = yama::scope() == 1;
    let (ours, theirs) = socketpair()?;
    let (mut ours, mut theirs) = (Some(ours), Some(theirs));
    let target = std::process::id().cast_signed();
    let mut job = Some(job);
    let mut life = || {
        drop(ours.take());
        if let (Some(socket), Some(job)) = (theirs.take(), job.take()) {
            help(target, adopts, socket, restricted, keep, job);
        }
    };
    // Its end sends no signal: a SIGCHLD that the caller blocks would stay pending in the program.
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
    let helper = Helper { pid, is_child: adopts };
    match handshake(File::from(ours), restricted, pid) {
        Ok(()) => Ok(helper),
        // It has ended, and its pid may be another process's by now.
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
    /// Kills the helper. When this returns the calling process is not traced any more, so it may become a
    /// program that must not be traced.
    pub fn dismiss(self) {
        // The pid is the helper's: it is a child that was not waited for, or it holds the socket or traces
        // this process.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        if self.is_child {
            return wait_for(self.pid);
        }
        // It is not a child, so wait4(2) does not work. After its end this process has no tracer any more.
        let until = Instant::now() + PATIENCE;
        while Process::OWN.status().is_ok_and(|status| status.tracer.is_some_and(|tracer| tracer != 0))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns whether orphans among this process's descendants become its children.
pub fn adopts_orphans() -> bool {
    let is_subreaper = nix::sys::prctl::get_child_subreaper().unwrap_or(false);
    std::process::id() == 1 || is_subreaper
}

/// Returns whether a child would be in another pid namespace (unshare(2), CLONE_NEWPID).
fn has_foreign_children() -> Result<bool, Bypass> {
    let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The second link cannot be read before that namespace has a first process.
    match link("pid") {
        Some(own) => Ok(link("pid_for_children") != Some(own)),
        // The helper reads the program's status. Reading this process's own status shows whether /proc is
        // at fault.
        None => Ok(Process::OWN.status().map(|_| false)?),
    }
}

fn socketpair() -> Result<(OwnedFd, OwnedFd), Bypass> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| Bypass::Resources { what: "socketpair", source: e.into() })
}

/// Size of the intermediate process's stack, which is also the helper's. Only what is used takes memory.
const STACK_BYTES: usize = 8 << 20;

/// The data that the intermediate process and the launcher share.
struct Intermediate<'a> {
    /// The helper's work.
    life: &'a mut dyn FnMut(),
    helper: Option<i32>,
}

/// Forks the intermediate process, which forks the helper; the helper calls `life` and ends. Returns the
/// helper's pid, `None` if it could not be forked.
///
/// The intermediate process borrows the launcher's memory, as a child of vfork(2) does: to copy the page
/// tables twice would take longer than most other work of the launcher.
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
    // SAFETY: the end of the mapping, which is aligned to a page.
    let top = unsafe { stack.byte_add(STACK_BYTES) };
    let uncounted = Uncounted::begin();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | uncounted.as_ref().map_or(0, |_| libc::SIGCHLD);
    // SAFETY: clone(2): the child has a stack of its own, and we wait until it has ended. So
    // `intermediate` lives, and nothing else uses it meanwhile. This process has one thread.
    let child = unsafe { libc::clone(fork_helper, top, flags, (&raw mut intermediate).cast()) };
    let result = if child < 0 { Err(failed("fork")) } else { Ok(intermediate.helper) };
    // SAFETY: munmap(2) of what was mapped above. No process runs on it any more: the helper has its own
    // copy.
    unsafe { libc::munmap(stack, STACK_BYTES) };
    if child > 0 {
        wait_for(child);
    }
    drop(uncounted);
    result
}

/// Ignores SIGCHLD while it lives. So the kernel removes a child as soon as it ends, sends no signal, and
/// does not add the child's usage to what getrusage(2) reports of the program's children.
struct Uncounted(libc::sigaction);

impl Uncounted {
    /// Ignores SIGCHLD; returns `None` where the program would lose something: the kernel would discard a
    /// pending SIGCHLD, and not report the end of a child that this process had before.
    fn begin() -> Option<Uncounted> {
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::__WALL;
        let has_no_child = waitid(Id::All, any) == Err(Errno::ECHILD);
        // SAFETY: zeros are valid for both structures. sigpending(2) and sigaction(2) write to what lives
        // through the calls.
        unsafe {
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
        // SAFETY: sigaction(2) reads what an earlier sigaction(2) has written.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.0, ptr::null_mut()) };
    }
}

/// Forks the helper in the intermediate process, and ends.
extern "C" fn fork_helper(intermediate: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `fork_twice` passes a live `Intermediate`, and waits.
    let intermediate = unsafe { &mut *intermediate.cast::<Intermediate>() };
    match fork(libc::SIGCHLD) {
        Ok(Some(0)) => (intermediate.life)(),
        Ok(helper) => intermediate.helper = helper,
        // `helper` stays `None`.
        Err(_) => {}
    }
    exit_now()
}

/// Makes clone(2) without shared memory; the child's end sends `end_signal`. Returns the child's pid, 0 in
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
    let child = Pid::from_raw(child);
    while waitpid(child, Some(WaitPidFlag::__WALL)) == Err(Errno::EINTR) {}
}

fn exit_now() -> ! {
    // SAFETY: _exit(2) ends the process without running what the launcher has registered.
    unsafe { libc::_exit(0) }
}

const READY: u8 = 0;

/// Permits the helper to trace the launcher, if Yama requires that, and waits until it does.
fn handshake(mut socket: File, restricted: bool, helper: i32) -> Result<(), Bypass> {
    if restricted {
        set_ptracer(helper);
        // Without SIGPIPE, which would end this process if the helper is gone.
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
    let patience = hugelift_linux::faultpoint::patience(PATIENCE);
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) if left.is_zero() => return Err(Bypass::HelperLate { seconds: patience.as_secs() }),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Bypass::Resources { what: "poll", source: errno.into() }),
        }
    }
}

/// Permits `pid` to trace this process under Yama's mode 1, until that process ends (prctl(2),
/// PR_SET_PTRACER).
fn set_ptracer(pid: i32) {
    // SAFETY: prctl(2) with plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid.cast_unsigned()), 0, 0, 0) };
}

/// Acts as the helper. Where tracing is `restricted`, it first waits for the launcher's permission.
fn help(target: i32, is_child: bool, socket: OwnedFd, restricted: bool, keep: &[RawFd], job: &mut LiftJob) {
    // A session of its own: ctrl-C is for the program. A new process leads no group, so it does not fail.
    let _ = nix::unistd::setsid();
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
        match attend(running, is_child.then(|| std::process::id().cast_signed()), job) {
            // The launcher was killed, or its execve(2) failed, which it reports itself.
            Ok(()) => {}
            Err(ptrace::Error::Vanished(_)) => return,
            Err(error) => {
                job.bypass(&error.into());
                return;
            }
        }
        hugelift_linux::faultpoint::finish();
        if !is_child {
            job.after_start();
        }
    }
}

/// Sends to the process at the other end 0 if it is traced now, else an errno. Returns the tracee.
fn send_answer(mut socket: File, seized: Result<Running, ptrace::Error>) -> Option<Running> {
    let (answer, running) = match seized {
        Ok(running) => (0, Some(running)),
        Err(ptrace::Error::Os { source, .. }) => (source.raw_os_error().unwrap_or(libc::EPERM), None),
        Err(_) => (libc::ESRCH, None),
    };
    socket.write_all(&i32::to_ne_bytes(answer)).ok()?;
    running
}
