// SPDX-License-Identifier: Apache-2.0
//! Finds out whether a seccomp(2) filter may kill the launcher for its system calls.
//!
//! A filter stays in force over execve(2), cannot be read by those under it, and may answer any call
//! by killing the process. The launcher is the process that becomes the program: if it is killed, a
//! program is lost that would run without hugelift. So under a filter hugelift makes only those calls
//! that the loader of the C library has made already, until it knows more:
//!
//! 1. *Does the filter allow fork(2)?* It does if the parent was under the same filters when it forked this
//!    process. Otherwise only an attempt shows it, which the user must request.
//! 2. *Does it allow the other calls?* A child makes all calls of a lift once, and may be killed for it in
//!    the launcher's place (`trial`).
//!
//! The helper needs no such test. A helper that is killed ends the tracing, and the program goes on.

mod trial;

use crate::launch::bypass::Bypass;
use hugelift_linux::proc::procfs::ProcError;
use nix::errno::Errno;
use std::ffi::CString;

/// The capability of capabilities(7) with which a process may add filters.
const CAP_SYS_ADMIN: u32 = 21;

/// The content of a `/proc/PID/status`.
pub struct OwnStatus(Vec<u8>);

impl OwnStatus {
    /// Reads the status of the calling process, by openat(2), read(2) and close(2) alone.
    ///
    /// # Errors
    /// [`ProcError`]
    pub fn read() -> Result<OwnStatus, ProcError> {
        read("/proc/self/status").map(OwnStatus)
    }

    /// Returns whether any filter is in force.
    pub fn is_filtered(&self) -> bool {
        self.number("Seccomp", 10).is_some_and(|mode| mode != 0)
    }

    /// Returns whether /proc shows another pid namespace than this process's own.
    pub fn is_foreign(&self) -> bool {
        let own = u64::from(std::process::id());
        // One pid for each namespace, from that of /proc to the process's own.
        let numbers = self.field("NSpid").map_or(1, |line| line.split_ascii_whitespace().count());
        numbers > 1 || self.number("Pid", 10).is_some_and(|pid| pid != own)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.split(|&b| b == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
        std::str::from_utf8(value).ok()
    }

    fn number(&self, name: &str, radix: u32) -> Option<u64> {
        u64::from_str_radix(self.field(name)?.trim(), radix).ok()
    }

    /// Returns the mode of seccomp and the number of filters (since Linux 5.9).
    fn filters(&self) -> Option<(u64, u64)> {
        Some((self.number("Seccomp", 10)?, self.number("Seccomp_filters", 10)?))
    }

    /// Returns whether the process may add filters.
    fn may_add_filters(&self) -> bool {
        let has = |set| self.number(set, 16).is_none_or(|bits| bits >> CAP_SYS_ADMIN & 1 != 0);
        has("CapEff") || has("CapPrm") || self.number("NoNewPrivs", 10) != Some(0)
    }

    fn parent(&self) -> Option<OwnStatus> {
        let pid = self.number("PPid", 10).filter(|pid| *pid != 0)?;
        read(&format!("/proc/{pid}/status")).ok().map(OwnStatus)
    }
}

/// Checks that the calling process, whose status is `own`, may become a launcher. With `try_fork` it takes
/// the risk that its filter kills it for fork(2).
///
/// # Errors
/// The reason why the program must be started without hugelift.
pub fn check(own: &OwnStatus, try_fork: bool) -> Result<(), Bypass> {
    if !own.is_filtered() {
        Ok(())
    } else if !try_fork && !has_been_forked_under_it(own) {
        Err(Bypass::Filtered)
    } else if !trial::is_survived() {
        Err(Bypass::FilterKills)
    } else {
        Ok(())
    }
}

/// Returns whether the filters of `own` have allowed a fork(2).
///
/// They have if the parent has as many filters, and had them when it forked this process. It had them if it
/// cannot add filters, or if its own parent has as many too. (A sandbox that installs its filter after the
/// fork has a parent without that filter.)
fn has_been_forked_under_it(own: &OwnStatus) -> bool {
    let Some(filters) = own.filters() else { return false };
    let same = |other: &OwnStatus| other.filters() == Some(filters);
    let Some(parent) = own.parent().filter(same) else { return false };
    !parent.may_add_filters() || parent.parent().is_some_and(|one| same(&one))
}

/// Reads a file of /proc that one read(2) returns whole.
fn read(path: &str) -> Result<Vec<u8>, ProcError> {
    let failed = |errno| match errno {
        Errno::ENOENT => ProcError::NotMounted { path: path.into() },
        errno => ProcError::Io { path: path.into(), errno },
    };
    let name = CString::new(path).map_err(|_| failed(Errno::EINVAL))?;
    let mut text = vec![0; 8 << 10];
    // By its number: the standard library makes other calls too, and musl's open(3) makes open(2) and fcntl(2), which a
    // filter for programs of another C library may not know.
    // SAFETY: openat(2) of a string that ends in NUL; read(2) writes at most `text.len()` bytes to
    // `text`; close(2) of what was opened here. errno is read before close(2) can change it.
    let got = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) as libc::c_int;
        if fd < 0 {
            return Err(failed(Errno::last()));
        }
        let got = usize::try_from(libc::read(fd, text.as_mut_ptr().cast(), text.len()));
        let got = got.map_err(|_| failed(Errno::last()));
        libc::close(fd);
        got?
    };
    text.truncate(got);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> OwnStatus {
        OwnStatus(text.into())
    }

    #[test]
    fn what_it_says_of_filters() {
        assert!(!status("Seccomp:\t0\nSeccomp_filters:\t0\n").is_filtered());
        assert!(status("Seccomp:\t2\nSeccomp_filters:\t1\n").is_filtered());
        assert!(status("Seccomp:\t1\n").is_filtered());
        // A kernel without seccomp.
        assert!(!status("Name:\tx\n").is_filtered());
        assert_eq!(status("Seccomp:\t2\nSeccomp_filters:\t3\n").filters(), Some((2, 3)));
        assert_eq!(status("Seccomp:\t2\n").filters(), None);
    }

    #[test]
    fn who_may_add_filters() {
        let none = "CapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\nNoNewPrivs:\t0\n";
        assert!(!status(none).may_add_filters());
        assert!(status(&none.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")).may_add_filters());
        assert!(
            status(&none.replace("CapPrm:\t00000000a80425fb", "CapPrm:\t0000000000200000")).may_add_filters()
        );
        assert!(status("").may_add_filters());
    }

    #[test]
    fn another_namespaces_proc_is_seen() {
        let own = std::process::id();
        assert!(!status(&format!("Pid:\t{own}\nNSpid:\t{own}\n")).is_foreign());
        assert!(status(&format!("Pid:\t{}\n", own + 1)).is_foreign());
        assert!(status(&format!("Pid:\t{own}\nNSpid:\t{own}\t1\n")).is_foreign());
        assert!(!OwnStatus::read().unwrap().is_foreign());
    }

    #[test]
    fn without_a_filter_nothing_is_tried() {
        assert!(check(&status("Seccomp:\t0\n"), false).is_ok());
        assert!(matches!(
            check(&status("Seccomp:\t2\nSeccomp_filters:\t1\nPPid:\t0\n"), false),
            Err(Bypass::Filtered)
        ));
    }
}
