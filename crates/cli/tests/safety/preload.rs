// SPDX-License-Identifier: Apache-2.0
//! Tests that the library is preloaded only into programs that can load it, and that it harms none of them.

use crate::common::{Cmd, End, HUGELIFT, Outcome, Pool, build::must, fat, guard, open_dir, plain};
use crate::{need, need_root, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const CHILDREN: &[&str] = &["--backing", "thp", "--children", "lift"];
const POOL: &[&str] = &["--backing", "thp", "--parts", "data,bss", "--data-backing", "hugetlb"];

fn library() -> PathBuf {
    Path::new(HUGELIFT).with_file_name("libhugelift_inside.so")
}

/// A victim built with one of gcc's sanitizers.
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
    let children = one_line(&Cmd::new([&program]), CHILDREN);
    let pool = one_line(&Cmd::new([&program]), POOL);
    for line in [children, pool] {
        assert!(line.contains(program.to_str().expect("UTF-8")) && line.contains("libasan.so"), "{line}");
    }
    let strict = Cmd::new([&program]).lifted(&[CHILDREN, &["--strict"]].concat());
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
    let line = one_line(&Cmd::new([&script]), CHILDREN);
    assert!(line.contains("libasan.so"), "{line}");
}

/// hugelift cannot know which programs become children. It sets `verify_asan_link_order=0`, so that
/// AddressSanitizer in a child accepts the library, and still finds errors.
#[test]
fn children_with_asan_start_and_find_their_errors() {
    need!("gcc");
    let program = sanitized("address");
    let text = format!(
        "{p}; echo $?; {p} x 2>&1 | grep -c heap-use-after-free; ASAN_OPTIONS=$ASAN_OPTIONS:exitcode=9 {p} x 2>/dev/null; echo $?",
        p = program.display()
    );
    let cmd = Cmd::new(["sh", "-c", &text]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(CHILDREN));
    assert!(bare.stdout.contains("\n3\n2\n") && bare.stdout.ends_with("\n9\n"), "{bare:?}");
    assert_eq!(lifted.stdout.replace("library 1", "library 0"), bare.stdout, "{lifted:?}");
    assert_eq!((lifted.end, lifted.stderr.as_str()), (bare.end, ""));
    // The user's own options stay and take precedence.
    let cmd = Cmd::new(["sh", "-c", "echo $ASAN_OPTIONS"]).env("ASAN_OPTIONS", "exitcode=8");
    assert_eq!(cmd.lifted(CHILDREN).stdout, "verify_asan_link_order=0:exitcode=8\n");
}

/// The other runtimes accept the library: programs and children have it, and behave as they do bare.
#[test]
fn other_sanitizers_run_with_the_library() {
    need!("gcc");
    for sanitizer in ["thread", "leak", "undefined"] {
        let program = sanitized(sanitizer);
        for cmd in [Cmd::new([&program]), Cmd::new(["env".as_ref(), program.as_os_str()])] {
            let (bare, lifted) = (cmd.bare(), cmd.lifted(CHILDREN));
            assert_eq!(bare.end, End::Code(3), "{sanitizer}: {bare:?}");
            assert_eq!((lifted.end, lifted.stderr.as_str()), (bare.end, ""), "{sanitizer}: {lifted:?}");
            assert_eq!(lifted.stdout, bare.stdout.replace("library 0", "library 1"), "{sanitizer}");
        }
    }
}

/// Covers clang's runtime, recognised by its name as a library the program needs, and gcc's, recognised
/// in the user's own LD_PRELOAD.
#[test]
fn any_runtime_that_must_be_first_prevents_the_preload() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let empty = dir.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 5; }").expect("write");
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
    assert!(one_line(&Cmd::new([&program]), CHILDREN).contains("libclang_rt.asan-x86_64.so"));
    let preloaded = shared("libasan.so.99");
    let cmd = Cmd::new(["sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", &preloaded);
    let line = one_line(&cmd, CHILDREN);
    assert!(line.contains("LD_PRELOAD") && line.contains("libasan.so.99"), "{line}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_program_gets_no_preload() {
    let flags = ["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"];
    let cmd = Cmd::new([plain("environ32").flags(&flags).build()]);
    for options in [CHILDREN, POOL] {
        let (bare, lifted) = (cmd.bare(), cmd.lifted(options));
        assert!(bare.stdout.contains("PATH=") && bare.end == End::Code(42), "{bare:?}");
        assert_eq!((lifted.end, &lifted.stdout), (bare.end, &bare.stdout), "{options:?}");
        assert_eq!(lifted.other_lines(), "");
        assert!(lifted.own_lines().iter().all(|line| line.contains("32-bit")), "{lifted:?}");
    }
}

/// Runs a copy of hugelift, with a copy of its library, as a user who is not root. Every user can reach
/// both; the library and its folder get the modes given.
fn as_other_user(library_mode: u32, folder_mode: u32, options: &[&str]) -> Outcome {
    let dir = open_dir(&[]);
    let [bin, lib] = ["bin", "lib/hugelift"].map(|name| dir.path().join(name));
    for folder in [&bin, &lib] {
        std::fs::create_dir_all(folder).expect("mkdir");
    }
    let launcher = bin.join("hugelift");
    std::fs::rename(dir.path().join("hugelift"), &launcher).expect("rename");
    let copy = lib.join("libhugelift_inside.so");
    std::fs::copy(library(), &copy).expect("copy the library");
    set_mode(&copy, library_mode);
    set_mode(&lib, folder_mode);
    let all = [options, &["--user", "65534:65534"]].concat();
    let cmd = Cmd::new(["sh", "-c", "echo \"$LD_PRELOAD\"; sh -c 'echo ran'"]).cwd("/").launcher(&launcher);
    let outcome = cmd.lifted(&all);
    assert_eq!((outcome.end, outcome.other_lines()), (End::Code(0), String::new()), "{outcome:?}");
    outcome
}

#[test]
fn a_user_who_cannot_read_the_library_is_told_the_reason() {
    need_root!();
    for (library, folder, hint) in [(0o600, 0o755, "chmod o+r /"), (0o644, 0o700, "chmod o+x /")] {
        let outcome = as_other_user(library, folder, CHILDREN);
        assert_eq!(outcome.stdout, "\nran\n", "{outcome:?}");
        let [line] = outcome.own_lines()[..] else { panic!("{outcome:?}") };
        assert!(line.contains("user 65534 cannot read") && line.contains(hint), "{line}");
    }
    let outcome = as_other_user(0o644, 0o755, CHILDREN);
    assert!(
        outcome.stdout.contains("libhugelift_inside.so") && outcome.own_lines().is_empty(),
        "{outcome:?}"
    );
}

/// Root's children may run as other users: with `-v` a line says that those cannot load the library.
#[test]
fn a_library_that_is_closed_to_others_is_reported() {
    let dir = open_dir(&[&library()]);
    let cmd = Cmd::new(["true"]).launcher(dir.path().join("hugelift"));
    let told = |options: &[&str]| {
        let lines = cmd.lifted(&[CHILDREN, options].concat());
        lines.own_lines().iter().filter(|line| line.contains("run as other users")).count()
    };
    assert_eq!(told(&["-v"]), 0);
    set_mode(dir.path(), 0o700);
    assert_eq!((told(&["-v"]), told(&[])), (1, 0));
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
    let cmd = Cmd::new(["sh", "-c", "echo $LD_PRELOAD"]).under(["unshare", "-m", "sh", "-c", &mount, "sh"]);
    let line = one_line(&cmd.launcher(bin.join("hugelift")), CHILDREN);
    assert!(line.contains("noexec"), "{line}");
}

/// Runs the victim `forks` with `words` and an exhausted pool: fork(2) kills no process, and the child has
/// no page of the pool.
fn forks(words: &[&str]) {
    let _pool = match Pool::with_free(guard::PLENTY) {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let dir = tempfile::TempDir::new().expect("a folder");
    let victim = plain("forks").flags(&["-pthread", "-O1"]).build();
    let cmd = Cmd::new([victim]).args(["5", "exhaust"]).args(words).cwd(&dir);
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

/// A command with a child whose helper starts and never answers.
fn child_without_answer(dir: &tempfile::TempDir, before: &str) -> Cmd {
    let silent = dir.path().join("silent");
    std::fs::write(&silent, "#!/bin/sh\ntrap '' TERM\nexec sleep 20 >/dev/null 2>&1\n").expect("write");
    set_mode(&silent, 0o755);
    let child = fat("child").build();
    Cmd::new([
        "sh",
        "-c",
        &format!("HUGELIFT_EXE={} {before} {}; echo $?", silent.display(), child.display()),
    ])
}

#[test]
fn a_child_whose_helper_does_not_answer_can_be_ended() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let began = Instant::now();
    let outcome = child_without_answer(&dir, "timeout 1").lifted(CHILDREN);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("124\n", ""), "{outcome:?}");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "the child was ended by its own deadline, not by timeout(1): {:?}",
        began.elapsed()
    );
}

#[test]
fn a_child_whose_helper_does_not_answer_starts_plainly() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let outcome = child_without_answer(&dir, "").lifted(CHILDREN);
    assert!(outcome.stdout.contains(" small,") && outcome.stdout.ends_with("\n0\n"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
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
