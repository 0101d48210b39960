// SPDX-License-Identifier: Apache-2.0
//! `--children lift`: the programs that a lifted program starts are lifted, however they are
//! started, and neither they nor their parents can notice it.

use crate::common::{Cmd, End, HUGELIFT, Outcome, fat, plain, same_lines};
use crate::need;
use std::path::{Path, PathBuf};

const LIFT: &[&str] = &["--backing", "thp", "--children", "lift"];

fn child() -> PathBuf {
    fat("child").build()
}

/// Asserts that the command does the same bare and with its children lifted. Lifted, `huge`
/// children are on huge pages, and none is on small pages.
fn lifts(cmd: &Cmd, huge: usize) -> Outcome {
    let outcome = same_lines(cmd, LIFT, |text| text.replace(" huge,", " small,"));
    let count = |word: &str| outcome.stdout.lines().filter(|line| line.contains(word)).count();
    assert_eq!((count(" huge,"), count(" small,")), (huge, 0), "{}", outcome.stdout);
    outcome
}

/// Writes an executable script.
fn script(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("write the script");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("make it executable");
    path
}

#[test]
fn of_a_shell_script() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let child = child();
    let text = format!(
        "#!/bin/sh\n{c} code 3; echo $?\n{c} | cat\n( {c} ) &\nwait\necho $({c})\n{c} signal 9\necho $?\nexec {c} code 5\n",
        c = child.display()
    );
    // The shell's message about the killed child contains a pid.
    let cmd = Cmd::new([script(&dir, "script", &text)]);
    let lifted = cmd.lifted(LIFT);
    assert_eq!(lifted.end, End::Code(5), "{lifted:?}");
    assert_eq!(lifted.stdout.matches(" huge,").count(), 6, "{}", lifted.stdout);
    assert_eq!(lifted.stdout.replace(" huge,", " small,"), cmd.bare().stdout);
    assert_eq!(lifted.own_lines(), Vec::<&str>::new());
}

#[test]
fn of_make() {
    need!("make");
    let dir = tempfile::TempDir::new().expect("a folder");
    let makefile = format!(
        "all: $(addprefix t,1 2 3 4 5 6 7 8)\nt%:\n\t@{c} >$@.out; cat $@.out; rm $@.out\nfail:\n\t@{c} code 4\n",
        c = child().display()
    );
    std::fs::write(dir.path().join("Makefile"), makefile).expect("write the makefile");
    lifts(&Cmd::new(["make", "-s", "-j4", "all"]).cwd(&dir), 8);
    let failed = lifts(&Cmd::new(["make", "-s", "fail"]).cwd(&dir), 1);
    assert_eq!(failed.end, End::Code(2));
}

#[test]
fn of_other_programs() {
    let child = child();
    let child = child.to_str().expect("a path in UTF-8");
    lifts(&Cmd::new(["env", "A=b", child, "code", "9"]), 1);
    lifts(&Cmd::new(["nice", "-n", "1", "timeout", "50", child]), 1);
    lifts(&Cmd::new(["xargs", "-n", "1", "-P", "1", child]).stdin("1 2 3"), 3);
    lifts(&Cmd::new(["sh", "-c", &format!("exec {child} code 3 2>&- <&-")]), 1);
}

#[test]
fn of_python() {
    need!("python3");
    let child = child();
    let text = format!(
        "import os, subprocess, sys\n\
         c = {child:?}\n\
         print(subprocess.run([c, 'code', '4']).returncode, flush=True)\n\
         print(subprocess.run([c, 'signal', '15']).returncode, flush=True)\n\
         print(os.waitpid(os.posix_spawn(c, ['another name'], os.environ), 0)[1], flush=True)\n\
         print(os.system(c + ' code 6'), flush=True)\n\
         with os.popen(c) as p: print(p.read(), flush=True)\n\
         if os.fork() == 0: os.execv(c, ['forked'])\n\
         os.wait()\n\
         for bad in ['/nowhere', '/etc/passwd', '/', '/etc/passwd/x']:\n\
         \x20   for start in [lambda: os.posix_spawn(bad, ['x'], os.environ), lambda: os.execv(bad, ['x'])]:\n\
         \x20       try: start()\n\
         \x20       except OSError as e: print(e, flush=True)\n\
         os.execv(c, ['by execv', 'code', '8'])\n"
    );
    let outcome = lifts(&Cmd::new(["python3", "-c", &text]), 7);
    assert_eq!(outcome.end, End::Code(8));
}

#[test]
fn of_node() {
    need!("node");
    let text = format!(
        "const {{spawnSync}} = require('child_process'); const c = {:?};\n\
         for (const how of [{{}}, {{shell: true}}, {{argv0: 'other'}}]) {{\n\
         const r = spawnSync(c, ['code', '3'], how); console.log(r.status, String(r.stdout)); }}\n\
         console.log(spawnSync('/nowhere').error.code);",
        child()
    );
    lifts(&Cmd::new(["node", "-e", &text]), 3);
}

/// Go calls execve(2) without the C library. The preloaded library in the child lifts it all the
/// same.
#[test]
fn of_go() {
    need!("go");
    let dir = tempfile::TempDir::new().expect("a folder");
    let source = format!(
        "package main\nimport (\"fmt\"; \"os/exec\")\nfunc main() {{\n\
         out, err := exec.Command({:?}, \"code\", \"7\").Output(); fmt.Println(string(out), err)\n\
         fmt.Println(exec.Command(\"/nowhere\").Run()) }}\n",
        child()
    );
    std::fs::write(dir.path().join("main.go"), source).expect("write the source");
    let built = Cmd::new(["go", "build", "-o", "main", "main.go"]).cwd(&dir).bare();
    assert_eq!(built.end, End::Code(0), "{built:?}");
    lifts(&Cmd::new([dir.path().join("main")]), 1);
}

#[test]
fn of_either_c_library() {
    need!("x86_64-linux-musl-gcc");
    let musl = fat("child").compiler("x86_64-linux-musl-gcc").build();
    let text = format!("{}; {}", musl.display(), child().display());
    lifts(&Cmd::new(["sh", "-c", &text]), 2);
}

/// The child of a child, through a program that is too small to be lifted and one that is not.
#[test]
fn of_children() {
    let child = child();
    let child = child.to_str().expect("a path in UTF-8");
    let run = format!("env sh -c '{child}; sh -c \"{child}\"'");
    lifts(&Cmd::new(["sh", "-c", &run]), 2);
}

/// A child inherits what its parent gave it. hugelift adds only three variables, and the variable that
/// AddressSanitizer reads.
#[test]
fn inherit_what_they_would_without_hugelift() {
    let state = fat("state").build();
    let cmd = Cmd::new(["sh", "-c", &format!("exec {} quick <&- 7</dev/null", state.display())]);
    let stable = |text: &str| {
        let ours = ["HUGELIFT_", "LD_PRELOAD", "libhugelift_inside", "/proc/self/environ", "ASAN_OPTIONS="];
        let own = |line: &&str| !ours.iter().any(|w| line.contains(w));
        text.lines().filter(own).map(|line| format!("{line}\n")).collect()
    };
    let lifted = same_lines(&cmd, LIFT, stable);
    let names: Vec<&str> = lifted
        .stdout
        .lines()
        .filter(|line| line.contains("HUGELIFT_") || line.contains("LD_PRELOAD="))
        .filter(|line| !line.starts_with("/proc/self/environ") && !line.contains("HUGELIFT_STORE"))
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(!names.iter().any(|line| line.contains("HUGELIFT_STARTED")), "{names:?}");
}

#[test]
fn the_users_own_libraries_stay() {
    let shim = plain("tiny").library().build();
    let before = shim.to_str().expect("a path in UTF-8");
    let cmd = Cmd::new(["sh", "-c", "sh -c 'echo $LD_PRELOAD; grep -c tiny /proc/self/maps'"])
        .env("LD_PRELOAD", before);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(LIFT));
    let [first, second] = [&bare, &lifted].map(|o| o.stdout.lines().map(str::to_string).collect::<Vec<_>>());
    assert_eq!(first[0], before);
    assert!(second[0].ends_with(&format!(":{before}")), "{}", second[0]);
    assert_eq!(first[1], second[1]);
}

#[test]
fn a_child_without_the_environment_is_plain() {
    let child = child();
    let cmd = Cmd::new(["env".as_ref(), "-i".as_ref(), child.as_os_str()]);
    assert!(cmd.lifted(LIFT).stdout.contains(" small,"));
    let plain = Cmd::new(["env".as_ref(), child.as_os_str()]);
    assert!(plain.lifted(&["--backing", "thp"]).stdout.contains(" small,"), "children are lifted by default");
}

#[test]
fn many_forks_and_execs() {
    let child = child();
    let text = format!(
        "i=0; while [ $i -lt 100 ]; do {} >/dev/null || exit 1; i=$((i+1)); done; {0}",
        child.display()
    );
    lifts(&Cmd::new(["sh", "-c", &text]), 1);
    let text =
        "i=0; while [ $i -lt 300 ]; do /bin/true || exit 1; (exit 3); [ $? = 3 ] || exit 2; i=$((i+1)); done";
    lifts(&Cmd::new(["sh", "-c", text]), 0);
}

/// No process is left behind, and wait(2) finds no child.
#[test]
fn no_helper_is_a_child() {
    need!("python3");
    let text = format!(
        "import os, resource, subprocess\n\
         subprocess.run([{:?}])\n\
         try: os.wait()\n\
         except ChildProcessError: print('no child')\n",
        child()
    );
    lifts(&Cmd::new(["python3", "-c", &text]), 1);
}

#[test]
fn verbose_children_report_themselves() {
    let child = child();
    let cmd = Cmd::new(["env".as_ref(), child.as_os_str()]);
    let said = cmd.lifted(&["--backing", "thp", "--children", "lift", "-v"]);
    let name = child.file_name().unwrap().to_str().unwrap();
    let told =
        said.own_lines().into_iter().filter(|l| l.contains(name) && l.contains("on huge pages")).count();
    assert_eq!(told, 1, "{said:?}");
}

/// A hugelift that does not find its library.
#[test]
fn without_the_library() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let alone = dir.path().join("hugelift");
    std::fs::copy(HUGELIFT, &alone).expect("copy hugelift");
    let child = child();
    let cmd = Cmd::new(["env".as_ref(), child.as_os_str()]).launcher(&alone);
    let run = cmd.lifted(LIFT);
    assert_eq!((run.end, run.own_lines().len()), (End::Code(0), 1), "{run:?}");
    let line = run.own_lines()[0].to_string();
    assert!(line.contains("libhugelift_inside.so") && line.contains("without huge pages"), "{line}");
    assert!(run.stdout.contains(" small,"));
    let strict = cmd.lifted(&[LIFT, &["--strict"]].concat());
    assert_eq!((strict.end, strict.stdout.as_str()), (End::Code(125), ""), "{strict:?}");

    // As installed: bin/hugelift and lib/hugelift.
    let (bin, lib) = (dir.path().join("p/bin"), dir.path().join("p/lib/hugelift"));
    for dir in [&bin, &lib] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    std::fs::copy(HUGELIFT, bin.join("hugelift")).expect("copy hugelift");
    let library = Path::new(HUGELIFT).with_file_name("libhugelift_inside.so");
    std::fs::copy(library, lib.join("libhugelift_inside.so")).expect("copy the library");
    let cmd = cmd.launcher(bin.join("hugelift"));
    assert!(cmd.lifted(LIFT).stdout.contains(" huge,"));
}

/// If the helper cannot trace or does not exist, the child starts unlifted and prints nothing.
#[test]
fn a_child_that_cannot_be_lifted_starts() {
    let child = child();
    let gone = format!("HUGELIFT_EXE=/nowhere {}", child.display());
    let cmd = Cmd::new(["sh", "-c", &gone]);
    let run = cmd.lifted(LIFT);
    assert!(run.stdout.contains(" small,") && run.stderr.is_empty(), "{run:?}");
    // Another program in place of the helper.
    for other in ["/bin/true", "/bin/false"] {
        let wrong = format!("HUGELIFT_EXE={other} {}", child.display());
        let run = Cmd::new(["sh", "-c", &wrong]).lifted(LIFT);
        assert!(run.stdout.contains(" small,") && run.stderr.is_empty(), "{run:?}");
    }
    need!("strace");
    let traced = Cmd::new(["sh", "-c", &format!("strace -o /dev/null {}", child.display())]);
    let run = traced.lifted(LIFT);
    assert!(run.stdout.contains(" small,") && run.stderr.is_empty(), "{run:?}");
}

#[test]
fn a_call_of_the_helper_by_hand_is_refused() {
    for (args, what) in [
        (&["inside"][..], "wants PID and FD"),
        (&["inside", "1", "x"], "wants PID and FD"),
        (&["inside", "1", "99"], "HUGELIFT_CHILDREN"),
    ] {
        let out = std::process::Command::new(HUGELIFT).args(args).output().expect("run hugelift");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(125), "{text}");
        assert!(text.contains(what), "{text}");
    }
    let options = Cmd::new(["sh", "-c", "printf %s \"$HUGELIFT_CHILDREN\""]).lifted(LIFT).stdout;
    let with = |options: &str, fd: &str| {
        let mut command = std::process::Command::new(HUGELIFT);
        command.args(["inside", "1", fd]).env("HUGELIFT_CHILDREN", options);
        String::from_utf8_lossy(&command.output().expect("run hugelift").stderr).into_owned()
    };
    assert!(with(&options, "99").contains("descriptor 99"), "{options}");
    assert!(with(&options, "0").contains("descriptor 0"), "{options}");
    for hostile in [
        "",
        "0r",
        "0r --backing=thp",
        "0r {\"version\":2}",
        &options.replace("\"numa\"", "\"\\u001b[2J\""),
        &options.replace("\"objects\":[]", "\"objects\":[\"[\"]"),
        &options[..options.len() - 1],
    ] {
        let line = with(hostile, "99");
        let is_clear = line.lines().count() == 1 && !line.trim_end().chars().any(char::is_control);
        assert!(is_clear && !line.contains("descriptor"), "{hostile}: {line}");
    }
}

/// The library that is loaded into every program is small, has no writable and executable memory,
/// and needs no C library.
#[test]
fn the_library_itself() {
    let library =
        std::fs::read(Path::new(HUGELIFT).with_file_name("libhugelift_inside.so")).expect("the library");
    assert!(library.len() < 64 << 10, "{} bytes", library.len());
    let headers = hugelift_core::elf::Headers::parse(&library).expect("an ELF file");
    assert!(headers.segments.iter().all(|s| !s.prot.is_wx()), "{:?}", headers.segments);
    let maps = Cmd::new(["sh", "-c", "cat /proc/self/maps; ldd $LD_PRELOAD"]).lifted(LIFT).stdout;
    let own: Vec<&str> = maps.lines().filter(|l| l.contains("libhugelift_inside")).collect();
    assert!(own.len() >= 3, "{maps}");
    assert!(!own.iter().any(|line| line.contains("rwx")), "{own:?}");
    assert!(maps.contains("statically linked"), "{maps}");
}
