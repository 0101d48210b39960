// SPDX-License-Identifier: Apache-2.0
//! Suite: the command as it ships, stripped as in packages, in a root directory that holds nothing but it and a static
//! program.

use crate::grow::grow;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, hugelift, is_guest, lacks, needs_root};
use crate::start::{bare, run};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[test]
fn runs_with_no_libraries_around() {
    needs_root!();
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow("vm_big.static", page);
    let root = big.path.parent().unwrap();
    fs::copy(hugelift(), root.join("hugelift")).unwrap();
    // That of a guest is stripped.
    if !is_guest() {
        assert!(Command::new("strip").arg(root.join("hugelift")).status().unwrap().success());
    }
    let size = fs::metadata(root.join("hugelift")).unwrap().len();
    // This is the only limit of its size. What `align --separate` needs, the decoder of x86-64, the reader of debug
    // information, and what unpacks it (zlib, zstd, xz), are 1.1 MB of it.
    assert!(size < 10_000_000, "{size} bytes");
    for dir in ["proc", "sys"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    let path = |p: &str| CString::new(p).unwrap();
    let (proc, sysfs) = (path("proc"), path("sysfs"));
    let dir = CString::new(root.as_os_str().as_bytes()).unwrap();
    let (at_proc, at_sys) = (path("/proc"), path("/sys"));
    let enter = move || {
        // SAFETY: unshare(2), chroot(2), chdir(2), mount(2): the strings live in this closure;
        // this is the child between fork and exec. Mounts vanish with its namespace.
        let failed = unsafe {
            libc::unshare(libc::CLONE_NEWNS) != 0
                || libc::mount(
                    std::ptr::null(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) != 0
                || libc::chroot(dir.as_ptr()) != 0
                || libc::chdir(c"/".as_ptr()) != 0
                || libc::mount(proc.as_ptr(), at_proc.as_ptr(), proc.as_ptr(), 0, std::ptr::null()) != 0
                || libc::mount(sysfs.as_ptr(), at_sys.as_ptr(), sysfs.as_ptr(), 0, std::ptr::null()) != 0
        };
        if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    let mut command = Command::new("/hugelift");
    command.args(["run", "--backing", "thp", "/big"]);
    // SAFETY: as above; system calls alone.
    let lifted = run(unsafe { command.pre_exec(enter) });
    lifted.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
    lifted.look().assert_lifted(page, From::Thp);
    lifted.assert_silent();
}
