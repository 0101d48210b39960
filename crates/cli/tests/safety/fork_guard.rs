// SPDX-License-Identifier: Apache-2.0
//! Tests that the fork guard is preloaded only into programs that can load it, that it harms none of them, and
//! that children are started without it.

use crate::common::{Cmd, End, HUGELIFT, Outcome, Pool, build::must, fat, guard, open_dir, plain};
use crate::{need, need_root, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const POOL: &[&str] = &["--backing", "thp", "--parts", "data,bss", "--data-backing", "hugetlb"];

fn library() -> PathBuf {
    Path::new(HUGELIFT).with_file_name("libhugelift_inside.so")
}

/// A program that prints whether the library is loaded, has bss for huge pages, and exits with 3.
fn telling() -> PathBuf {
    plain("sanitized").build()
}

/// The same program built with one of gcc's sanitizers.
fn sanitized(sanitizer: &str) -> PathBuf {
    plain("sanitized").compiler("gcc").flags(&[&format!("-fsanitize={sanitizer}")]).build()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Checks that the program behaves as it does bare and that hugelift prints one line; returns the line.
fn one_line(cmd: &Cmd, options: &[&str]) -> String {
    let (bare, lifted) = (cmd.bare(), cmd.lifted(options));
    assert_eq!((&lifted.stdout, lifted.end), (&bare.stdout, bare.end), "{options:?}: {lifted:?}");
    assert_eq!(lifted.other_lines(), bare.stderr, "{options:?}");
    let [line] = lifted.own_lines()[..] else {
        panic!("{options:?}: hugelift did not print exactly one line: {lifted:?}")
    };
    line.to_string()
}

#[test]
fn a_program_with_asan_gets_no_preload_and_one_line() {
    need!("gcc");
    let program = sanitized("address");
    let bare = Cmd::new([&program]).bare();
    assert_eq!(
        (bare.end, bare.stdout.as_str()),
        (End::Code(3), "library 0, threads 7 5, zero 0\n"),
        "{bare:?}"
    );
    let line = one_line(&Cmd::new([&program]), POOL);
    assert!(line.contains(program.to_str().expect("UTF-8")) && line.contains("libasan.so"), "{line}");
    let strict = Cmd::new([&program]).lifted(&[POOL, &["--strict"]].concat());
    assert_eq!((strict.end, strict.stdout.as_str()), (End::Code(125), ""), "{strict:?}");
}

/// The program is started through a script that names it as its interpreter.
#[test]
fn a_script_for_a_program_with_asan_gets_no_preload() {
    need!("gcc");
    let dir = tempfile::TempDir::new().expect("a folder");
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{}\n", sanitized("address").display())).expect("write");
    set_mode(&script, 0o755);
    let line = one_line(&Cmd::new([&script]), POOL);
    assert!(line.contains("libasan.so"), "{line}");
}

/// Children do not inherit the library, which AddressSanitizer's runtime would not accept. A static program
/// gets none: it does not load the library, which would remove itself from `LD_PRELOAD`.
#[test]
fn children_with_asan_start() {
    need!("gcc");
    let program = sanitized("address");
    let text = format!("{p}; echo $?; {p} x 2>&1 | grep -c heap-use-after-free", p = program.display());
    let cmd = Cmd::new(["sh", "-c", &text]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(POOL));
    assert!(bare.stdout.contains("\n3\n2\n"), "{bare:?}");
    assert_eq!((lifted.end, &lifted.stdout, lifted.stderr.as_str()), (bare.end, &bare.stdout, ""));
    let dir = tempfile::TempDir::new().expect("a folder");
    let (source, fixed) = (dir.path().join("static.c"), dir.path().join("static"));
    let text = "#include <unistd.h>\nstatic volatile char zeros[8 << 20];\n\
                int main(int c, char **v) { return zeros[c] + execv(v[1], v + 1); }";
    std::fs::write(&source, text).expect("write");
    must(Command::new("cc").arg("-static").arg("-o").arg(&fixed).arg(&source));
    let line = one_line(&Cmd::new([&fixed, &program]), POOL);
    assert!(line.contains("static"), "{line}");
}

/// The other runtimes accept the library: programs have it, and behave as they do bare. Children do not have
/// it.
#[test]
fn other_sanitizers_run_with_the_library() {
    need_root!();
    need!("gcc");
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    for sanitizer in ["thread", "leak", "undefined"] {
        let program = sanitized(sanitizer);
        let child = Cmd::new(["env".as_ref(), program.as_os_str()]);
        for (cmd, loaded) in [(Cmd::new([&program]), "library 1"), (child, "library 0")] {
            let (bare, lifted) = (cmd.bare(), cmd.lifted(POOL));
            assert_eq!(bare.end, End::Code(3), "{sanitizer}: {bare:?}");
            assert_eq!((lifted.end, lifted.other_lines()), (bare.end, String::new()), "{lifted:?}");
            assert_eq!(lifted.stdout, bare.stdout.replace("library 0", loaded), "{sanitizer}");
            // ThreadSanitizer has a thread of its own from the start.
            assert!(
                lifted.own_lines().iter().all(|line| line.contains("more than one thread")),
                "{lifted:?}"
            );
        }
    }
}

/// Covers clang's runtime, recognised by its name as a library the program needs, and gcc's, recognised
/// in the user's own LD_PRELOAD.
#[test]
fn any_runtime_that_must_be_first_prevents_the_preload() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let empty = dir.path().join("empty.c");
    let text = "static volatile char zeros[8 << 20]; int main(int c) { return zeros[c] + 5; }";
    std::fs::write(&empty, text).expect("write");
    let shared = |name: &str| {
        let path = dir.path().join(name);
        let soname = format!("-Wl,-soname,{name}");
        must(
            Command::new("cc")
                .args(["-shared", "-fPIC", "-Dmain=other", &soname, "-o"])
                .arg(&path)
                .arg(&empty),
        );
        path
    };
    let clangs = shared("libclang_rt.asan-x86_64.so");
    let program = dir.path().join("program");
    let rpath = format!("-Wl,--no-as-needed,-rpath,{}", dir.path().display());
    must(Command::new("cc").arg("-o").arg(&program).arg(&empty).arg(rpath).arg(&clangs));
    assert!(one_line(&Cmd::new([&program]), POOL).contains("libclang_rt.asan-x86_64.so"));
    let preloaded = shared("libasan.so.99");
    let line = one_line(&Cmd::new([telling()]).env("LD_PRELOAD", &preloaded), POOL);
    assert!(line.contains("LD_PRELOAD") && line.contains("libasan.so.99"), "{line}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_program_gets_no_preload() {
    let flags = ["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"];
    let cmd = Cmd::new([plain("environ32").flags(&flags).build()]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(POOL));
    assert!(bare.stdout.contains("PATH=") && bare.end == End::Code(42), "{bare:?}");
    assert_eq!((lifted.end, &lifted.stdout), (bare.end, &bare.stdout));
    assert_eq!(lifted.other_lines(), "");
    assert!(lifted.own_lines().iter().all(|line| line.contains("32-bit")), "{lifted:?}");
}

/// Runs a copy of hugelift, with a copy of its library, as a user who is not root. Every user can reach
/// both; the library and its folder get the modes given.
fn as_other_user(library_mode: u32, folder_mode: u32) -> Outcome {
    let program = telling();
    let dir = open_dir(&[&program]);
    let [bin, lib] = ["bin", "lib/hugelift"].map(|name| dir.path().join(name));
    for folder in [&bin, &lib] {
        std::fs::create_dir_all(folder).expect("mkdir");
    }
    let launcher = bin.join("hugelift");
    std::fs::rename(dir.path().join("hugelift"), &launcher).expect("rename");
    let copy = lib.join("libhugelift_inside.so");
    crate::common::cache::copy(library(), &copy);
    set_mode(&copy, library_mode);
    set_mode(&lib, folder_mode);
    let cmd = Cmd::new([dir.path().join(program.file_name().expect("a name"))]).cwd("/").launcher(&launcher);
    let outcome = cmd.lifted(&[POOL, &["--user", "65534:65534"]].concat());
    assert_eq!((outcome.end, outcome.other_lines()), (End::Code(3), String::new()), "{outcome:?}");
    outcome
}

#[test]
fn a_user_who_cannot_read_the_library_is_told_the_reason() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    for (library, folder, hint) in [(0o600, 0o755, "chmod o+r /"), (0o644, 0o700, "chmod o+x /")] {
        let outcome = as_other_user(library, folder);
        assert!(outcome.stdout.starts_with("library 0,"), "{outcome:?}");
        let [line] = outcome.own_lines()[..] else { panic!("{outcome:?}") };
        assert!(line.contains("user 65534 cannot read") && line.contains(hint), "{line}");
    }
    let outcome = as_other_user(0o644, 0o755);
    assert!(outcome.stdout.starts_with("library 1,") && outcome.own_lines().is_empty(), "{outcome:?}");
}

/// Another user can put a file beside an executable, where the folder allows it. It is not loaded.
#[test]
fn a_library_of_another_user_is_not_preloaded() {
    need_root!();
    need!("cc");
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let dir = open_dir(&[]);
    let (bin, lib) = (dir.path().join("bin"), dir.path().join("lib/hugelift"));
    for folder in [&bin, &lib] {
        std::fs::create_dir_all(folder).expect("mkdir");
    }
    std::fs::rename(dir.path().join("hugelift"), bin.join("hugelift")).expect("rename");
    let (source, mark) = (dir.path().join("planted.c"), dir.path().join("mark"));
    let text = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void begin(void) {{ open(\"{}\", O_CREAT, 0644); }}\n",
        mark.display()
    );
    std::fs::write(&source, text).expect("write");
    for folder in [&bin, &lib] {
        let planted = folder.join("libhugelift_inside.so");
        must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&planted).arg(&source));
        std::os::unix::fs::chown(&planted, Some(65534), Some(65534)).expect("chown");
    }
    let is_not_loaded = || {
        let outcome = Cmd::new([telling()]).launcher(bin.join("hugelift")).lifted(POOL);
        assert!(!mark.exists(), "{outcome:?}");
        // The library that hugelift contains is loaded.
        assert!(outcome.end == End::Code(3) && outcome.stdout.starts_with("library 1,"), "{outcome:?}");
    };
    is_not_loaded();
    // Links of another user, and root's file in a folder in which others can rename it.
    let kept = dir.path().join("kept.so");
    for folder in [&bin, &lib] {
        let planted = folder.join("libhugelift_inside.so");
        std::fs::rename(&planted, &kept).expect("rename");
        std::os::unix::fs::symlink(&kept, &planted).expect("a link");
        std::os::unix::fs::lchown(&planted, Some(65534), Some(65534)).expect("lchown");
    }
    is_not_loaded();
    for folder in [&bin, &lib] {
        let planted = folder.join("libhugelift_inside.so");
        std::fs::remove_file(&planted).expect("remove");
        std::fs::copy(&kept, &planted).expect("copy");
        set_mode(folder, 0o777);
    }
    is_not_loaded();
}

#[test]
fn a_library_on_a_noexec_mount_is_not_preloaded() {
    need_root!();
    need!("unshare");
    let dir = open_dir(&[]);
    let (bin, lib) = (dir.path().join("bin"), dir.path().join("lib/hugelift"));
    for folder in [&bin, &lib] {
        std::fs::create_dir_all(folder).expect("mkdir");
    }
    std::fs::rename(dir.path().join("hugelift"), bin.join("hugelift")).expect("rename");
    let mount = format!(
        "mount -t tmpfs -o noexec none {l} && cp {} {l} && exec \"$@\"",
        library().display(),
        l = lib.display()
    );
    let cmd = Cmd::new([telling()]).under(["unshare", "-m", "sh", "-c", &mount, "sh"]);
    let line = one_line(&cmd.launcher(bin.join("hugelift")), POOL);
    assert!(line.contains("noexec"), "{line}");
}

/// A copy of hugelift in a folder without the library, as `cargo install` leaves it.
fn alone() -> (tempfile::TempDir, PathBuf) {
    let dir = open_dir(&[]);
    let launcher = dir.path().join("hugelift");
    (dir, launcher)
}

#[test]
fn without_its_file_the_library_comes_from_memory() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let (_dir, launcher) = alone();
    let program = telling();
    let of_user = open_dir(&[&program]);
    let copy = of_user.path().join(program.file_name().expect("a name"));
    for words in [POOL.to_vec(), [POOL, &["--user", "65534:65534"]].concat()] {
        let outcome = Cmd::new([&copy]).cwd("/").launcher(&launcher).lifted(&words);
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Code(3), ""), "{outcome:?}");
        assert!(outcome.stdout.starts_with("library 1,"), "{outcome:?}");
    }
    // The program has no file open that it would not have bare, and its own LD_PRELOAD.
    let text = "cd /proc/$$/fd && echo *; env | grep -e LD_PRELOAD -e HUGELIFT; env true && echo done";
    let cmd = Cmd::new(["sh", "-c", text]).launcher(&launcher);
    for cmd in [cmd.clone(), cmd.env("LD_PRELOAD", "libm.so.6")] {
        let (bare, lifted) = (cmd.bare(), cmd.lifted(POOL));
        assert_eq!((&lifted.stdout, lifted.end), (&bare.stdout, bare.end), "{lifted:?}");
        assert!(bare.stdout.starts_with("0 1 ") && bare.stdout.ends_with("done\n"), "{bare:?}");
    }
}

/// The guard's table is found in the file in memory too.
#[test]
fn the_fork_guard_from_memory_copies_the_same() {
    need_root!();
    let (_dir, launcher) = alone();
    forks_under(&["closed"], Some(&launcher));
}

/// Runs the victim `forks` with `words` and an exhausted pool: fork(2) kills no process, and the child has
/// no page of the pool.
fn forks(words: &[&str]) {
    forks_under(words, None);
}

/// As [`forks`], under a copy of hugelift.
fn forks_under(words: &[&str], launcher: Option<&Path>) {
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let dir = tempfile::TempDir::new().expect("a folder");
    let victim = plain("forks").flags(&["-pthread", "-O1"]).build();
    let cmd = Cmd::new([victim]).args(["5", "exhaust"]).args(words).cwd(&dir);
    let cmd = launcher.into_iter().fold(cmd, |cmd, launcher| cmd.launcher(launcher));
    let lifted = cmd.lifted(POOL);
    assert_eq!((lifted.end, lifted.stderr.as_str()), (End::Code(0), ""), "{words:?}: {lifted:?}");
    let kilobytes: Vec<u64> =
        lifted.stdout.lines().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
    assert!(kilobytes[0] >= 10 << 10, "{words:?}: {lifted:?}");
    assert_eq!(kilobytes[1], 0, "{words:?}: {lifted:?}");
}

#[test]
fn the_fork_guard_forgets_none_of_many_mappings() {
    need_root!();
    forks(&["crowd", "inner"]);
}

/// The list of mappings may have lines that are longer than the guard's buffer.
#[test]
fn the_fork_guard_reads_past_a_long_path() {
    need_root!();
    forks(&["deep"]);
}

#[test]
fn the_fork_guard_copies_what_the_program_has_closed() {
    need_root!();
    forks(&["closed"]);
}

/// Bss that was never written to is missing for a userfaultfd, as it is bare. This holds once bss has
/// left the pool because the program starts a second thread, and it holds on transparent huge pages.
#[test]
fn a_userfaultfd_sees_untouched_bss() {
    need_root!();
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let victim = plain("userfault").build();
    let cmd = Cmd::new([&victim]);
    let bare = cmd.bare();
    if bare.end == End::Code(77) {
        skip!("no userfaultfd(2)");
    }
    assert_eq!(bare.stdout, "filled 2048, right 2048\n", "{bare:?}");
    for options in [POOL, &["--backing", "thp", "--parts", "data,bss"]] {
        let lifted = cmd.lifted(options);
        assert_eq!((&lifted.stdout, lifted.end, lifted.stderr.as_str()), (&bare.stdout, bare.end, ""));
    }
    // A userfaultfd cannot fill pages of the pool by 4 kB, whether they are touched or not. This is why
    // hugelift fills bss on the pool.
    let kernel = cmd.arg("kernel").bare();
    assert_eq!(kernel.stdout, "watch a part: EINVAL; watch: 0; fill 4 kB: EINVAL\n", "{kernel:?}");
}

/// Runs a program whose `--perf-map` cannot be written: the program runs, and one line, which this returns,
/// says why.
fn unnamed(cmd: &Cmd) -> String {
    let lifted = cmd.lifted(&["--backing", "thp", "--perf-map"]);
    assert_eq!((lifted.end, lifted.stdout.as_str()), (End::Code(0), "ran\n"), "{lifted:?}");
    let [line] = lifted.own_lines()[..] else { panic!("{lifted:?}") };
    assert!(line.contains("--perf-map: "), "{line}");
    line.to_string()
}

fn ran() -> Cmd {
    Cmd::new([fat("ran").build()])
}

#[test]
fn a_perf_map_that_cannot_be_written_is_reported() {
    need_root!();
    // Only the process itself knows its number before the file is written, so it plants the link.
    let dir = tempfile::TempDir::new().expect("a folder");
    let plant = "ln -s /nowhere /tmp/perf-$$.map && echo /tmp/perf-$$.map >planted && exec \"$@\"";
    let line = unnamed(&ran().under(["sh", "-c", plant, "sh"]).cwd(&dir));
    let planted = std::fs::read_to_string(dir.path().join("planted")).expect("the name");
    std::fs::remove_file(planted.trim()).expect("remove the link");
    assert!(line.contains(&format!("rm {}", planted.trim())), "{line}");
    // A limit on file sizes shows only when the watcher writes the file.
    let line = unnamed(&ran().under(["sh", "-c", "ulimit -f 0; exec \"$@\"", "sh"]));
    assert!(line.contains("cannot write /tmp/perf-"), "{line}");
    need!("strip");
    let stripped = dir.path().join("stripped");
    must(Command::new("strip").arg("-o").arg(&stripped).arg(fat("ran").build()));
    let line = unnamed(&Cmd::new([&stripped]));
    assert!(line.contains("stripped"), "{line}");
}
