// SPDX-License-Identifier: Apache-2.0
//! `LD_PRELOAD=libhugelift.so` with options in `HUGELIFT`.

use super::built::{Linking, library};
use crate::common::build::fat;
use crate::common::{Cmd, End, find, open_dir};
use crate::{need_root, skip};
use std::path::Path;

/// Returns a command with the library preloaded, and options.
fn preloaded(program: &Path, options: &str) -> Cmd {
    Cmd::new([program]).env("LD_PRELOAD", library().join("libhugelift.so.0")).env("HUGELIFT", options)
}

#[test]
fn a_program_is_lifted_as_its_words_ask() {
    let program = fat("by_itself_none").build();
    let bare = Cmd::new([&program]).bare();
    let done = preloaded(&program, "--parts text,rodata --backing thp -v").bare();
    assert_eq!((done.end, &done.stdout), (bare.end, &bare.stdout));
    let [line] = done.own_lines()[..] else { panic!("{}", done.stderr) };
    assert!(line.starts_with("hugelift: text ") && line.ends_with(" on huge pages"), "{line}");
    assert!(line.contains("text 4 MB of") || line.contains("text 6 MB of"), "{line}");
    assert_eq!(preloaded(&program, "-q").bare().stderr, bare.stderr);
}

#[test]
fn a_small_program_and_wrong_words_start_as_they_are() {
    let program = Path::new("/bin/true");
    let bare = Cmd::new([program]).bare();
    assert_eq!(preloaded(program, "--parts text --backing thp").bare(), bare);
    let done = preloaded(program, "--part text").bare();
    assert_eq!((done.end, &done.stdout), (bare.end, &bare.stdout));
    let [line] = done.own_lines()[..] else { panic!("{}", done.stderr) };
    assert!(line.contains("unknown option \"--part\""), "{line}");
    // Without the variable the library does nothing at all.
    let silent = Cmd::new([program]).env("LD_PRELOAD", library().join("libhugelift.so.0")).bare();
    assert_eq!(silent, bare);
}

/// Only at the start of a program is it known that nothing else writes to its data.
#[test]
fn data_is_lifted_at_the_start_alone() {
    let program = fat("by_itself_opens").build();
    let options = "--parts text,data --backing thp -v";
    let done = preloaded(&program, options).bare();
    assert_eq!((done.end, done.stdout.as_str()), (End::Code(0), "ok\n"), "{}", done.stderr);
    let [line] = done.own_lines()[..] else { panic!("{}", done.stderr) };
    assert!(line.contains("data 4 MB of") || line.contains("data 6 MB of"), "{line}");
    // The same program opens the library when it runs.
    let opened =
        Cmd::new([program.as_path(), &library().join("libhugelift.so.0")]).env("HUGELIFT", options).bare();
    assert_eq!((opened.end, opened.stdout.as_str()), (End::Code(0), "ok\n"), "{}", opened.stderr);
    let [why, line] = opened.own_lines()[..] else { panic!("{}", opened.stderr) };
    assert_eq!(why, "hugelift: data is not lifted: it is not known that the program has just started");
    assert!(line.contains("text ") && !line.contains("data "), "{line}");
}

#[test]
fn a_program_with_address_sanitizer_is_left_alone() {
    let victim = fat("by_itself_none").flags(&["-fsanitize=address"]);
    let Ok(program) = victim.try_build() else { skip!("cc has no AddressSanitizer") };
    let bare = Cmd::new([&program]).bare();
    let asked = || preloaded(&program, "--parts text --backing thp -v");
    let done = asked().env("ASAN_OPTIONS", "verify_asan_link_order=0").bare();
    assert_eq!(
        (done.end, &done.stdout, done.own_lines()),
        (bare.end, &bare.stdout, vec![]),
        "{}",
        done.stderr
    );
    // docs/which-way.md: a shared runtime ends the program unless it is loaded before every other library.
    let done = asked().bare();
    if done.end == bare.end {
        return;
    }
    assert!(done.stderr.contains("ASan runtime does not come first"), "{done:?}");
    let runtime = Cmd::new(["cc", "-print-file-name=libasan.so"]).bare().stdout;
    let both = format!("{} {}", runtime.trim(), library().join("libhugelift.so.0").display());
    let done = asked().env("LD_PRELOAD", both).bare();
    assert_eq!(
        (done.end, &done.stdout, done.own_lines()),
        (bare.end, &bare.stdout, vec![]),
        "{}",
        done.stderr
    );
}

#[test]
fn a_set_uid_program_is_left_alone() {
    need_root!();
    use std::os::unix::fs::PermissionsExt as _;
    let (Some(setpriv), Some(id)) = (find("setpriv"), find("id")) else { skip!("needs setpriv and id") };
    let open = open_dir(&[&library().join("libhugelift.so.0"), &id]);
    // The library is linked, as the loader ignores LD_PRELOAD here: HUGELIFT alone must not lift a privileged program.
    // The loader looks in this folder first, as another user may not reach the one of the tests.
    let first = format!("-Wl,-rpath,{}", open.path().display());
    let flags = Linking::Shared.flags();
    let flags: Vec<&str> = std::iter::once(first.as_str()).chain(flags.iter().map(String::as_str)).collect();
    let built = fat("by_itself_none").flags(&flags).build();
    let copy = open.path().join("program");
    crate::common::cache::copy(&built, &copy);
    // No other run can use it, as its folder has another name each time.
    std::fs::remove_file(&built).expect("remove");
    let run = |mode: u32, words: &[&Path]| {
        std::fs::set_permissions(words[0], std::fs::Permissions::from_mode(mode)).expect("chmod");
        let other = [setpriv.as_os_str(), "--reuid=65534".as_ref(), "--clear-groups".as_ref()];
        let words = other.into_iter().chain(words.iter().map(|word| word.as_os_str()));
        Cmd::new(words).env("HUGELIFT", "--parts text --backing thp -v").bare()
    };
    let id = open.path().join("id");
    let user = run(0o4755, &[id.as_path(), Path::new("-u")]);
    if user.stdout.trim() != "0" {
        skip!("set-uid has no effect on the file system of temporary files: {}{}", user.stdout, user.stderr);
    }
    let plain = run(0o755, &[copy.as_path()]);
    assert_eq!(plain.end, End::Code(0), "{}", plain.stderr);
    assert!(plain.own_lines().iter().any(|line| line.starts_with("hugelift: text ")), "{}", plain.stderr);
    let privileged = run(0o4755, &[copy.as_path()]);
    assert_eq!(privileged.end, End::Code(0), "{}", privileged.stderr);
    assert_eq!(privileged.own_lines(), [""; 0]);
}
