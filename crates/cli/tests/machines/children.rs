// SPDX-License-Identifier: Apache-2.0
//! Suite: programs that a lifted program starts are lifted as well.

use crate::grow::grow;
use crate::huge::thp;
use crate::look::From;
use crate::place::{alone, lacks};
use crate::start::{bare, lifted, run};
use std::path::Path;

fn lifts(name: &str, shell: &str) {
    let _alone = alone();
    let Some(page) = thp() else { lacks!("no transparent huge pages") };
    let big = grow(name, page);
    let text = format!("{shell}{}", big.path.display());
    let lifted =
        run(&mut lifted(&["--backing", "thp", "--children", "lift"], Path::new("/bin/sh"), &["-c", &text]));
    lifted.assert_same(&run(&mut bare::<&str>(&big.path, &[])));
    lifted.assert_silent();
    lifted.look().assert_lifted(page, From::Thp);
}

#[test]
fn of_a_shell() {
    lifts("vm_big.dynamic", "true; ");
    lifts("vm_big.pie", "true; ");
}

/// The process is the same, and was already lifted once, as the shell.
#[test]
fn in_its_place() {
    lifts("vm_big.pie", "exec ");
}

#[test]
fn with_threads_of_a_constructor() {
    lifts("vm_threads.pie", "true; ");
}
