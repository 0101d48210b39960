// SPDX-License-Identifier: Apache-2.0
//! Makes memory short, as the kernel reports it (Documentation/accounting/psi.rst), in a control group alone.

use super::cache;
use super::guard::CGroup;
use super::run::end_group;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// Programs that read a file again and again, in a control group with far less memory than the file needs.
pub struct Thrashing(Vec<Child>);

impl Thrashing {
    /// Starts them. The group has a limit below 100 MB; `file` is written.
    pub fn start(group: &CGroup, file: &Path) -> Thrashing {
        fs::write(file, vec![1; 128 << 20]).expect("write");
        // Pages in the cache count for the group that has brought them there: others read them with no memory of their own.
        cache::dropped(file);
        let words = group.words();
        let one = || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["sh", "-c", "while cat \"$1\" >/dev/null; do :; done", "sh"]);
            command.arg(file).process_group(0).spawn().expect("sh(1)")
        };
        Thrashing((0..4).map(|_| one()).collect())
    }
}

impl Drop for Thrashing {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end_group);
    }
}
