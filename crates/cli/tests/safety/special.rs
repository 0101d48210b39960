// SPDX-License-Identifier: Apache-2.0
//! Tests that no command opens a FIFO or a device where it expects a program. Opening a FIFO waits for a writer, and
//! opening a device may do anything.

use crate::common::{Cmd, End, HUGELIFT, Held, Outcome, fat, open_dir};
use crate::need_root;
use nix::sys::stat::Mode;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The longest time for a command that waits for no other process, on a busy machine. `doctor` tries files out, and waits
/// for the disk.
const SOON: Duration = Duration::from_secs(100);

/// A folder with a FIFO that everybody may open and that nobody writes to, a link to it, and a socket.
pub fn special() -> TempDir {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    fifo(&dir.path().join("fifo"));
    symlink("fifo", dir.path().join("link")).expect("symlink");
    dir
}

/// Makes a FIFO that may be read and executed.
fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, Mode::S_IRWXU).expect("mkfifo");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

fn hugelift(words: &[&str], file: &Path) -> Outcome {
    Cmd::new([HUGELIFT]).args(words).arg(file).patience(SOON).bare()
}

/// Each command says in one line what the file is not.
#[test]
fn no_command_opens_a_fifo_or_a_device_as_a_program() {
    let dir = special();
    let at = |name: &str| dir.path().join(name);
    let out = at("out").display().to_string();
    let ways: [&[&str]; 9] = [
        &["inspect"],
        &["inspect", "--json"],
        &["prime"],
        &["prime", "--check"],
        &["prime", "--with-libs"],
        &["align", "-o", &out],
        &["align", "--separate", "-o", &out],
        &["pool", "need"],
        &["doctor", "--facts"],
    ];
    for file in [at("fifo"), at("link"), PathBuf::from("/dev/zero"), PathBuf::from("/dev/ptmx")] {
        for words in ways {
            let said = hugelift(words, &file);
            let what = format!("{words:?} {}: {said:?}", file.display());
            assert_ne!(said.end, End::Code(0), "{what}");
            let all = format!("{}{}", said.stdout, said.stderr);
            let about = all.lines().filter(|line| line.contains("regular file")).count();
            assert_eq!((about, said.stderr.lines().count() <= 1), (1, true), "{what}");
        }
    }
    assert!(!at("out").exists());
}

/// Becoming such a program fails as it does without hugelift, and so does comparing it.
#[test]
fn a_fifo_is_not_run_or_compared() {
    let dir = special();
    let fifo = dir.path().join("fifo");
    let bare = Cmd::new([&fifo]).under(["env"]).patience(SOON).bare();
    assert_eq!(bare.end, End::Code(126), "{bare:?}");
    for words in [&["run", "--"][..], &["run", "--dry-run", "--"], &["run", "--backing", "pagecache", "--"]] {
        let said = hugelift(words, &fifo);
        assert_eq!((said.end, said.stderr.lines().count()), (bare.end, 1), "{words:?}: {said:?}");
    }
    let said = hugelift(&["compare", "--rounds", "1", "--"], &fifo);
    assert!(!matches!(said.end, End::Code(0)) && said.stderr.lines().count() <= 2, "{said:?}");
    // The words of a script's interpreter are read too.
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", fifo.display())).expect("write");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    for words in [&["run", "--"][..], &["run", "--dry-run", "--"], &["inspect"], &["pool", "need"]] {
        let said = hugelift(words, &script);
        assert_ne!(said.end, End::Code(0), "{words:?}: {said:?}");
        assert!(said.stderr.lines().count() <= 1, "{words:?}: {said:?}");
    }
}

/// What has taken the path of a running program's file is not opened.
#[test]
fn a_fifo_in_the_place_of_a_running_program_is_not_opened() {
    need_root!();
    let victim = fat("hold").build();
    let dir = open_dir(&[&victim]);
    let program = dir.path().join(victim.file_name().expect("a name"));
    let store = TempDir::new_in("/dev/shm").expect("a folder");
    let held = Held::start(&Cmd::new([&program]), None, &program);
    fs::remove_file(&program).expect("unlink");
    fifo(&program);
    let pid = held.pid().to_string();
    for words in [
        &["attach", "--whole", "--backing", "shared"][..],
        &["attach", "--whole", "--backing", "thp"],
        &["restore"],
        &["inspect"],
        &["doctor", "--pid"],
        &["pool", "need"],
    ] {
        let said = Cmd::new([HUGELIFT]).args(words).arg(&pid).env("HUGELIFT_STORE", store.path().join("s"));
        let said = said.patience(SOON).bare();
        assert!(matches!(said.end, End::Code(_)), "{words:?}: {said:?}");
    }
    assert_eq!(held.finish().end, End::Code(0));
}

/// The server's configuration lies in the folder that its command line names.
#[test]
fn a_fifo_as_the_configuration_of_postgres_does_not_make_doctor_wait() {
    let dir = special();
    let name = dir.path().join("postgres");
    fs::rename(dir.path().join("fifo"), dir.path().join("postgresql.conf")).expect("rename");
    symlink("/dev/zero", dir.path().join("postgresql.auto.conf")).expect("symlink");
    crate::common::cache::copy(fat("hold").build(), &name);
    let folder = dir.path().display().to_string();
    let server = Held::start(&Cmd::new([&name]).args(["-D", &folder]).cwd(dir.path()), None, &name);
    let said = hugelift(&["doctor", "--pid"], Path::new(&server.pid().to_string()));
    assert!(matches!(said.end, End::Code(0 | 1)) && said.stdout.contains("postgres"), "{said:?}");
    server.finish();
}
