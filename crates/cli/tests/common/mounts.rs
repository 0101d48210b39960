// SPDX-License-Identifier: Apache-2.0
//! File systems for one test, in mounts that no other process sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `body` in a thread with its own mounts, which end with the thread, whatever happens.
pub fn with_own_mounts(body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: unshare(2) of this thread's view of the mounts; mount(2) with strings that
        // live through the call.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "{}", std::io::Error::last_os_error());
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            let (none, root, null) = (c"none", c"/", std::ptr::null());
            assert_eq!(libc::mount(none.as_ptr(), root.as_ptr(), null, flags, null.cast()), 0);
        }
        body();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns whether the kernel knows file systems of this kind.
pub fn kernel_has(kind: &str) -> bool {
    // mount(8) would load the module.
    let _ = Command::new("modprobe").arg(kind).output();
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    known.lines().any(|line| line.split_whitespace().next_back() == Some(kind))
}

/// Runs mount(8).
pub fn mount(words: &[&str]) {
    let out = Command::new("mount").args(words).output().expect("mount(8)");
    assert!(out.status.success(), "mount {words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs a command that must succeed.
pub fn run(words: &[&str]) {
    let out = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{words:?}: {e}"));
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Returns a directory on a new file system of `kind`, which is in an image file.
pub fn image(dir: &Path, kind: &str) -> PathBuf {
    image_with(dir, kind, &[])
}

/// Like [`image`], with more arguments for mkfs.
pub fn image_with(dir: &Path, kind: &str, words: &[&str]) -> PathBuf {
    let (image, at) = (dir.join(format!("{kind}.img")), dir.join(kind));
    fs::create_dir(&at).unwrap();
    let (image_name, at_name) = (image.to_str().unwrap(), at.to_str().unwrap());
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    run(&[&[&format!("mkfs.{kind}")[..]], words, &[image_name]].concat());
    mount(&["-t", kind, "-o", "loop", image_name, at_name]);
    at
}
