// SPDX-License-Identifier: Apache-2.0
//! Tests that hugelift executes, opens and renames nothing that another user can change. Each attack
//! here succeeded against an earlier version.

use crate::common::{Cmd, End, HUGELIFT, Victim, fat, open_dir, plain};
use crate::{need, need_root};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::Mode;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The attacker's user id: that of nobody on most machines.
const OTHER_USER: u32 = 65534;

/// cap_net_raw=ep, version 2 (capabilities(7)).
fn capabilities() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A program whose text can be huge only in a re-laid copy.
fn skewed() -> Victim {
    fat("hold").flags(&["-no-pie", "-Wl,-z,max-page-size=0x1000", "-Wl,-Ttext=0x1003000"])
}

/// A directory of this owner and mode, with a short path that every user can reach.
fn directory(parent: &str, owner: u32, mode: u32) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("hl").tempdir_in(parent).expect("a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("chmod");
    chown(dir.path(), Some(owner), Some(owner)).expect("chown");
    dir
}

/// A directory that belongs to the other user.
fn other_users_directory() -> tempfile::TempDir {
    directory("/tmp", OTHER_USER, 0o755)
}

/// Copies `victim` to `path` and gives the copy to `owner`.
fn put(victim: &Path, path: &Path, owner: u32) {
    crate::common::cache::copy(victim, path);
    chown(path, Some(owner), Some(owner)).expect("chown");
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("write");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("chmod");
}

/// Replaces the loader's name in an ELF file. The new name must not be longer.
fn name_loader(file: &Path, loader: &Path) {
    let mut bytes = fs::read(file).expect("read");
    let owner = fs::metadata(file).expect("stat").uid();
    let start = [&b"/lib64/ld-linux-x86-64.so.2\0"[..], b"/lib/ld-linux-aarch64.so.1\0"];
    let (at, len) = start
        .iter()
        .find_map(|name| Some((bytes.windows(name.len()).position(|w| w == *name)?, name.len())))
        .expect("the name of glibc's loader");
    let name = loader.as_os_str().as_encoded_bytes();
    assert!(name.len() < len, "{} is too long", loader.display());
    bytes[at..at + len].fill(0);
    bytes[at..at + name.len()].copy_from_slice(name);
    fs::write(file, bytes).expect("write");
    chown(file, Some(owner), Some(owner)).expect("chown");
}

fn hugelift(words: &[&str], file: &Path) -> crate::common::Outcome {
    Cmd::new([HUGELIFT]).args(words).arg(file).bare()
}

fn replace(file: &Path) -> crate::common::Outcome {
    hugelift(&["prime", "--replace"], file)
}

/// Everything by which a test sees whether a file was replaced or changed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    inode: u64,
    mode: u32,
    owner: u32,
    links: u64,
    times: [i64; 4],
    bytes: u64,
}

fn state(path: &Path) -> State {
    let m = fs::symlink_metadata(path).expect("stat");
    let mut hash = DefaultHasher::new();
    let bytes = if m.is_file() { fs::read(path).expect("read") } else { Vec::new() };
    bytes.hash(&mut hash);
    let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
    State { inode: m.ino(), mode: m.mode(), owner: m.uid(), links: m.nlink(), times, bytes: hash.finish() }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

#[test]
fn a_planted_interpreter_is_not_run_and_the_file_is_left_alone() {
    need_root!();
    let dir = other_users_directory();
    let (program, mark) = (dir.path().join("program"), dir.path().join("mark"));
    let evil = format!("#!/bin/sh\nid -u >> {}\n", mark.display());
    // The planted interpreters: a file named like a loader, one named otherwise, a link, and a file of
    // root's in the other user's directory.
    script(&dir.path().join("ld-x.so"), &evil);
    chown(dir.path().join("ld-x.so"), Some(OTHER_USER), None).expect("chown");
    script(&dir.path().join("evil"), &evil);
    script(&dir.path().join("ld-r.so"), &evil);
    symlink("/lib64/ld-linux-x86-64.so.2", dir.path().join("ld-l.so")).expect("symlink");
    lchown(dir.path().join("ld-l.so"), Some(OTHER_USER), None).expect("chown");
    let beside = ["ld-x.so", "evil", "ld-r.so", "ld-l.so"].map(|name| dir.path().join(name));
    for loader in beside.iter().map(PathBuf::as_path).chain([Path::new("/bin/sh")]) {
        put(&skewed().build(), &program, OTHER_USER);
        name_loader(&program, loader);
        let before = (state(&program), names(dir.path()));
        let out = replace(&program);
        assert!(
            !mark.exists(),
            "hugelift ran {}; it ran as user {:?}",
            loader.display(),
            fs::read_to_string(&mark)
        );
        assert_eq!(out.end, End::Code(1), "{out:?}");
        let said = format!("its loader {} is not run", loader.display());
        assert!(out.stdout.contains(&said), "{out:?}");
        assert_eq!((state(&program), names(dir.path())), before);
        fs::remove_file(&program).expect("unlink");
    }
}

#[test]
fn the_loader_looks_at_a_file_with_the_rights_of_the_files_owner() {
    need_root!();
    // The loader belongs to root and lies in a directory that only root can change.
    let (roots, dir) = (directory("/var/lib", 0, 0o755), other_users_directory());
    let loader = roots.path().join("ld-x.so");
    let mark = dir.path().join("mark");
    let ask = "id -u; id -G; grep NoNewPrivs /proc/self/status; cut -d' ' -f6 /proc/$$/stat; env";
    script(&loader, &format!("#!/bin/sh\nexec >> {}\necho pid $$; {ask}\n", mark.display()));
    let program = dir.path().join("program");
    put(&skewed().build(), &program, OTHER_USER);
    name_loader(&program, &loader);
    let out = Cmd::new([HUGELIFT, "prime", "--replace"]).arg(&program).env("SECRET", "secret").bare();
    assert!(out.stdout.contains("replaced by a re-laid copy"), "{out:?}");
    let said = fs::read_to_string(&mark).expect("the loader was run");
    let runs: Vec<&str> = said.split("pid ").skip(1).collect();
    assert_eq!(runs.len(), 2, "{said}");
    for run in runs {
        let lines: Vec<&str> = run.lines().collect();
        assert_eq!(lines[1..4], ["65534", "65534", "NoNewPrivs:\t1"], "{said}");
        assert_eq!(lines[4], lines[0], "the loader must lead its own session: {said}");
        assert!(!run.contains("SECRET"), "{said}");
    }
}

#[test]
fn a_directory_that_is_swapped_during_the_steps_leads_nowhere() {
    need_root!();
    let (roots, dir) = (directory("/tmp", 0, 0o755), other_users_directory());
    let (theirs, link, away) = (dir.path().join("sub"), dir.path().join("link"), dir.path().join("away"));
    fs::create_dir(&theirs).expect("mkdir");
    chown(&theirs, Some(OTHER_USER), Some(OTHER_USER)).expect("chown");
    put(&skewed().build(), &theirs.join("program"), OTHER_USER);
    let precious = roots.path().join("precious");
    fs::write(&precious, "precious").expect("write");
    symlink(roots.path(), &link).expect("symlink");
    lchown(&link, Some(OTHER_USER), None).expect("chown");
    let before = state(&precious);
    // Swaps the directory at the best moment for a race: between the copy and the rename.
    let swap = format!(
        "case {{}} in */.program*) mv {0} {1}; ln -s {2} {0}; ln -s precious {2}/$(basename {{}});; esac",
        theirs.display(),
        away.display(),
        roots.path().display()
    );
    let out = hugelift(&["prime", "--replace", "--try", &swap], &theirs.join("program"));
    assert_eq!(state(&precious), before, "{out:?}");
    let left = names(roots.path());
    assert_eq!(left.len(), 2, "root's directory has not exactly precious and the planted link: {left:?}");
    let there = names(&away);
    assert!(!there.iter().any(|name| name.contains(".hugelift-") && !name.ends_with("-orig")), "{there:?}");
}

#[test]
fn a_race_for_the_directory_is_never_won() {
    need_root!();
    let (roots, dir) = (directory("/tmp", 0, 0o755), other_users_directory());
    let (sub, link) = (dir.path().join("sub"), dir.path().join("link"));
    fs::create_dir(&sub).expect("mkdir");
    chown(&sub, Some(OTHER_USER), Some(OTHER_USER)).expect("chown");
    put(&skewed().build(), &sub.join("program"), OTHER_USER);
    // The same program, owned by root: it must not change.
    let precious = roots.path().join("program");
    put(&skewed().build(), &precious, 0);
    symlink(roots.path(), &link).expect("symlink");
    lchown(&link, Some(OTHER_USER), None).expect("chown");
    let before = (state(&precious), names(roots.path()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &sub, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).expect("exchange");
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let done = std::panic::catch_unwind(|| {
            for _ in 0..4 {
                replace(&sub.join("program"));
                hugelift(&["prime", "--restore"], &sub.join("program"));
            }
        });
        stop.store(true, Ordering::Relaxed);
        done.expect("no command hangs");
    });
    assert_eq!((state(&precious), names(roots.path())), before);
}

#[test]
fn other_users_links_fifos_sockets_and_devices_are_refused_at_once() {
    need_root!();
    let dir = other_users_directory();
    let at = |name: &str| dir.path().join(name);
    put(&skewed().build(), &at("program"), 0);
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).expect("mkfifo");
    let _socket = UnixListener::bind(at("socket")).expect("bind");
    let null = nix::sys::stat::makedev(1, 3);
    nix::sys::stat::mknod(&at("device"), nix::sys::stat::SFlag::S_IFCHR, Mode::S_IRWXU, null).expect("mknod");
    for name in ["fifo", "socket", "device"] {
        for words in [&["prime", "--replace"][..], &["prime", "--restore"], &["align", "-o", "/dev/null/x"]] {
            let out = hugelift(words, &at(name));
            assert_eq!(out.end, End::Code(125), "{name}: {out:?}");
        }
        let out = hugelift(&["inspect"], &at(name));
        assert!(out.end == End::Code(125) && out.stderr.contains("not a regular file"), "{out:?}");
    }
    symlink("program", at("link")).expect("symlink");
    lchown(at("link"), Some(OTHER_USER), None).expect("chown");
    let before = state(&at("program"));
    let out = replace(&at("link"));
    let said = format!("{} is a symbolic link that user 65534 can change", at("link").display());
    assert!(out.stdout.contains(&said), "{out:?}");
    let out = hugelift(&["prime", "--restore"], &at("link"));
    assert!(out.end == End::Code(125) && out.stderr.contains(&said), "{out:?}");
    assert_eq!(state(&at("program")), before);
    // hugelift follows a link of root's.
    lchown(at("link"), Some(0), None).expect("chown");
    let out = replace(&at("link"));
    assert!(out.stdout.contains("replaced by a re-laid copy"), "{out:?}");
}

#[test]
fn a_file_planted_in_the_originals_place_is_not_taken_for_it() {
    need_root!();
    // Every user can make files in it, as in /tmp.
    let dir = directory("/tmp", 0, 0o1777);
    let (program, kept) = (dir.path().join("program"), dir.path().join(".program.hugelift-orig"));
    put(&skewed().build(), &program, 0);
    let plant: [(&str, &dyn Fn()); 4] = [
        ("owner", &|| put(&skewed().build(), &kept, OTHER_USER)),
        ("not a regular file", &|| nix::unistd::mkfifo(&kept, Mode::S_IRWXU).expect("mkfifo")),
        ("not a regular file", &|| symlink(&program, &kept).expect("symlink")),
        ("mode", &|| {
            put(&skewed().build(), &kept, 0);
            fs::set_permissions(&kept, Permissions::from_mode(0o777)).expect("chmod");
        }),
    ];
    for (why, plant) in plant {
        plant();
        let before = (state(&program), state(&kept), names(dir.path()));
        let out = replace(&program);
        assert!(out.stdout.contains(why) && out.stdout.contains("is in the way"), "{why}: {out:?}");
        let out = hugelift(&["prime", "--restore"], &program);
        assert!(out.end == End::Code(125) && out.stderr.contains(why), "{why}: {out:?}");
        assert_eq!((state(&program), state(&kept), names(dir.path())), before, "{why}");
        fs::remove_file(&kept).expect("unlink");
    }
}

#[test]
fn a_file_of_another_user_stays_theirs_and_goes_back() {
    need_root!();
    let dir = other_users_directory();
    let (program, kept) = (dir.path().join("program"), dir.path().join(".program.hugelift-orig"));
    put(&skewed().build(), &program, OTHER_USER);
    let inode = state(&program).inode;
    let out = replace(&program);
    assert!(out.stdout.contains("replaced by a re-laid copy"), "{out:?}");
    assert_eq!(
        (state(&program).owner, state(&kept).owner, state(&kept).inode),
        (OTHER_USER, OTHER_USER, inode)
    );
    // The user may do it as well, without root.
    let tools = open_dir(&[]);
    let own = tools.path().join("hugelift");
    let as_other_user = |option: &str| {
        let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Cmd::new(words).arg(&own).args(["prime", option]).arg(&program).bare()
    };
    need!("setpriv");
    let out = as_other_user("--restore");
    assert!(out.end == End::Code(0) && state(&program).inode == inode, "{out:?}");
    let out = as_other_user("--replace");
    assert!(out.stdout.contains("replaced by a re-laid copy"), "{out:?}");
    assert_eq!((state(&program).owner, state(&kept).inode), (OTHER_USER, inode));
}

#[test]
fn another_users_program_does_not_have_a_third_users_library_replaced() {
    need_root!();
    let (dir, third) = (other_users_directory(), directory("/tmp", 1234, 0o755));
    let flags = ["-DPART=1", "-Wl,-z,max-page-size=0x1000", "-Wl,-Ttext=0x1003000"];
    let built = fat("part").library().flags(&flags).build();
    let library = third.path().join(built.file_name().expect("a name"));
    put(&built, &library, 1234);
    let program = dir.path().join("program");
    put(&plain("reaper").flags(&["-Wl,--no-as-needed"]).with(built).build(), &program, OTHER_USER);
    let before = (state(&library), names(third.path()));
    let with_libs = |owner| {
        chown(&program, Some(owner), Some(owner)).expect("chown");
        let cmd = Cmd::new([HUGELIFT, "prime", "--replace", "--with-libs"]).arg(&program);
        cmd.env("LD_LIBRARY_PATH", third.path()).bare()
    };
    let out = with_libs(OTHER_USER);
    assert_eq!((state(&library), names(third.path())), before);
    assert!(out.stdout.contains("it belongs to user 1234, and user 65534 has loaded it"), "{out:?}");
    // A program of the library's owner, or of root, may have it replaced.
    let out = with_libs(1234);
    assert!(out.stdout.contains("replaced by a re-laid copy"), "{out:?}");
    assert_ne!(state(&library).inode, before.0.inode);
}

#[test]
fn a_program_with_file_capabilities_is_not_replaced_and_leaves_no_second_one() {
    need_root!();
    let dir = directory("/tmp", 0, 0o755);
    let (program, kept) = (dir.path().join("program"), dir.path().join(".program.hugelift-orig"));
    put(&skewed().build(), &program, 0);
    let of = |path: &Path| xattr::get(path, "security.capability").expect("getxattr");
    let give = |path: &Path| xattr::set(path, "security.capability", &capabilities()).expect("setcap");
    if let Err(e) = xattr::set(&program, "security.capability", &capabilities()) {
        crate::skip!("/tmp cannot have file capabilities: {e}");
    }
    let before = state(&program);
    let out = replace(&program);
    assert!(out.stdout.contains("has file capabilities: such a program is not replaced"), "{out:?}");
    assert_eq!((state(&program), of(&program)), (before, Some(capabilities())));
    assert_eq!(names(dir.path()), ["program"]);
    // Capabilities given after the replacement: restoring the original would lose them.
    xattr::remove(&program, "security.capability").expect("setcap -r");
    assert!(replace(&program).stdout.contains("replaced by a re-laid copy"));
    assert_eq!((of(&program), of(&kept)), (None, None));
    give(&program);
    let out = hugelift(&["prime", "--restore"], &program);
    assert!(out.end == End::Code(125) && out.stderr.contains("its file capabilities differ"), "{out:?}");
    // An earlier version gave both files the capabilities: the original is restored, and one file remains.
    give(&kept);
    let out = hugelift(&["prime", "--restore"], &program);
    assert_eq!(out.end, End::Code(0), "{out:?}");
    assert_eq!((names(dir.path()), of(&program)), (vec!["program".to_string()], Some(capabilities())));
}

#[test]
fn outputs_do_not_follow_another_users_link() {
    need_root!();
    let (roots, dir) = (directory("/tmp", 0, 0o755), directory("/tmp", OTHER_USER, 0o1777));
    let (precious, out) = (roots.path().join("precious"), dir.path().join("out"));
    fs::write(&precious, "precious").expect("write");
    let before = state(&precious);
    symlink(&precious, &out).expect("symlink");
    lchown(&out, Some(OTHER_USER), None).expect("chown");
    let path = out.to_str().expect("a path");
    let input = skewed().build();
    let input = input.to_str().expect("a path");
    let ways: [&[&str]; 3] = [
        &["inspect", "--html", path, "/bin/true"],
        &["align", "-o", path, input],
        &["run", "--report", path, "--", "/bin/true"],
    ];
    for words in ways {
        let said = Cmd::new([HUGELIFT]).args(words).bare();
        assert_eq!(state(&precious), before, "{words:?}: {said:?}");
        assert!(said.end == End::Code(125) && said.stderr.contains("user 65534 can change"), "{said:?}");
    }
    // A second name of root's file: every user can make one without fs.protected_hardlinks.
    fs::remove_file(&out).expect("unlink");
    fs::hard_link(&precious, &out).expect("link");
    let said = Cmd::new([HUGELIFT]).args(ways[2]).bare();
    assert!(said.end == End::Code(125) && said.stderr.contains("has 2 names"), "{said:?}");
    assert_eq!(fs::read(&precious).expect("read"), b"precious");
    let said = Cmd::new([HUGELIFT]).args(ways[0]).bare();
    assert_eq!((said.end, fs::read(&precious).expect("read")), (End::Code(0), b"precious".to_vec()));
}

#[test]
fn an_output_has_none_of_the_rights_that_another_user_prepared() {
    need_root!();
    let dir = other_users_directory();
    let out = dir.path().join("out.html");
    fs::write(&out, "").expect("write");
    chown(&out, Some(OTHER_USER), None).expect("chown");
    fs::set_permissions(&out, Permissions::from_mode(0o6777)).expect("chmod");
    let said = Cmd::new([HUGELIFT, "inspect", "--html"]).arg(&out).arg("/bin/true").bare();
    assert_eq!(said.end, End::Code(0), "{said:?}");
    let meta = fs::metadata(&out).expect("stat");
    assert!(meta.uid() == 0 && meta.mode() & 0o6022 == 0, "{:o}", meta.mode());
}

#[test]
fn outputs_wait_for_no_reader_and_special_files_are_written_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("mkfifo");
    let said = Cmd::new([HUGELIFT, "run", "--report"]).arg(&fifo).args(["--", "/bin/true"]).bare();
    assert!(said.end == End::Code(125) && said.stderr.contains("a FIFO that nobody reads"), "{said:?}");
    // A FIFO with a reader gets the whole output, and so do a pipe and a device.
    let mut reader = Command::new("cat").arg(&fifo).stdout(Stdio::piped()).spawn().expect("cat");
    let said = Cmd::new([HUGELIFT, "inspect", "--html"]).arg(&fifo).arg("/bin/true").bare();
    assert_eq!(said.end, End::Code(0), "{said:?}");
    let mut page = String::new();
    std::io::Read::read_to_string(&mut reader.stdout.take().expect("a pipe"), &mut page).expect("read");
    assert!(reader.wait().expect("wait").success() && page.ends_with("</html>\n"), "{page}");
    let said = Cmd::new([HUGELIFT, "inspect", "--html", "/dev/stdout", "/bin/true"]).bare();
    assert!(said.end == End::Code(0) && said.stdout.contains("</html>"), "{said:?}");
    let said = Cmd::new([HUGELIFT, "run", "--report", "/dev/null", "--", "/bin/true"]).bare();
    assert_eq!(said.end, End::Code(0), "{said:?}");
    if nix::unistd::geteuid().is_root() {
        chown(&fifo, Some(OTHER_USER), None).expect("chown");
        let said = Cmd::new([HUGELIFT, "inspect", "--html"]).arg(&fifo).arg("/bin/true").bare();
        assert!(said.end == End::Code(125) && said.stderr.contains("FIFO or socket of user"), "{said:?}");
    }
}

#[test]
fn a_script_whose_interpreter_is_a_fifo_ends_as_bare() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["fifo", "executable"] {
        nix::unistd::mkfifo(&at(name), Mode::S_IRWXU).expect("mkfifo");
    }
    fs::set_permissions(at("fifo"), Permissions::from_mode(0o644)).expect("chmod");
    let _socket = UnixListener::bind(at("socket")).expect("bind");
    script(&at("inner"), &format!("#!{}\n", at("fifo").display()));
    let interpreters = ["fifo", "executable", "socket", "inner", "none"].map(at);
    for interpreter in
        interpreters.iter().map(PathBuf::as_path).chain([Path::new("/dev/zero"), Path::new("/")])
    {
        script(&at("script"), &format!("#!{}\n", interpreter.display()));
        let cmd = Cmd::new([at("script")]).under(["env"]);
        let bare = cmd.bare();
        assert!(matches!(bare.end, End::Code(126 | 127)), "{bare:?}");
        let ours = Cmd::new([at("script")]);
        for options in [&[][..], &["--dry-run"], &["--backing", "pagecache"], &["--malloc", "thp"]] {
            let lifted = ours.lifted(options);
            let is_plan = options == ["--dry-run"];
            assert!(is_plan || lifted.end == bare.end, "{}: {bare:?} {lifted:?}", interpreter.display());
        }
        hugelift(&["inspect"], &at("script"));
        hugelift(&["prime", "--with-libs"], &at("script"));
    }
}

#[test]
fn a_process_that_calls_itself_postgres_does_not_make_doctor_wait() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = dir.path().join("postgres");
    nix::unistd::mkfifo(&dir.path().join("postgresql.conf"), Mode::S_IRWXU).expect("mkfifo");
    symlink("/dev/zero", dir.path().join("postgresql.auto.conf")).expect("symlink");
    crate::common::cache::copy(crate::common::find("sleep").expect("sleep"), &name);
    let mut child = Command::new(&name).arg("600").current_dir(dir.path()).spawn().expect("start");
    let out = Cmd::new([HUGELIFT, "doctor", "--pid"]).arg(child.id().to_string());
    let out = std::panic::catch_unwind(|| out.bare());
    child.kill().and_then(|()| child.wait()).expect("our own child");
    assert!(out.expect("doctor ends").stdout.contains("postgres"));
}
