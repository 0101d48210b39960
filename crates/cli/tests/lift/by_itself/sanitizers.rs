// SPDX-License-Identifier: Apache-2.0
//! Programs with sanitizers that lift themselves.

use super::built::{Linking, fat_with};
use crate::common::{Cmd, End};
use crate::skip;

/// Lifts and restores a program that is built with a sanitizer, which must have nothing to say.
fn is_clean(sanitizer: &'static str) {
    let victim = fat_with("by_itself", Linking::Shared).flags(&[sanitizer, "-fno-sanitize-recover=all"]);
    let program = match victim.try_build() {
        Ok(program) => program,
        Err(why) if why.contains("cannot find") => skip!("cc has no {sanitizer}"),
        Err(why) => panic!("{why}"),
    };
    for word in ["restore", "range", "arguments"] {
        let done = Cmd::new([program.as_os_str(), word.as_ref()]).bare();
        assert_eq!((done.end, done.stderr.as_str()), (End::Code(0), ""), "{word}: {}", done.stdout);
        assert!(done.stdout.ends_with("ok\n"), "{}", done.stdout);
    }
}

#[test]
fn address() {
    is_clean("-fsanitize=address");
}

#[test]
fn undefined_behaviour() {
    is_clean("-fsanitize=undefined");
}

#[test]
fn threads() {
    is_clean("-fsanitize=thread");
}
