// SPDX-License-Identifier: Apache-2.0
//! `--children lift`: the programs that a lifted program starts are lifted while they run, however they are
//! started, and neither they nor their parents can notice it.

use crate::common::{Cmd, End, Outcome, fat, same_lines};
use crate::need;
use std::path::PathBuf;
use std::time::Duration;

const LIFT: &[&str] = &["--backing", "thp", "--children", "lift"];

fn child() -> PathBuf {
    fat("child").build()
}

/// Asserts that the command does the same bare and with its children lifted. Lifted, `huge`
/// children are on huge pages, and none is on small pages.
fn lifts(cmd: &Cmd, huge: usize) -> Outcome {
    // On a busy machine each child may take a quarter of a minute of CPU time.
    let cmd = cmd.clone().patience(Duration::from_secs(600));
    let outcome = same_lines(&cmd, LIFT, |text| text.replace(" huge,", " small,"));
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

/// Go calls execve(2) without the C library.
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

/// Nothing is loaded into a child, so its C library does not matter, nor whether it has one that is shared.
#[test]
fn of_any_c_library() {
    need!("x86_64-linux-musl-gcc");
    let musl = fat("child").compiler("x86_64-linux-musl-gcc").build();
    let (fixed, moved) =
        (fat("child").flags(&["-static"]).build(), fat("child").flags(&["-static-pie"]).build());
    let text = [&musl, &fixed, &moved, &child()].map(|path| path.display().to_string()).join("; ");
    lifts(&Cmd::new(["sh", "-c", &text]), 4);
}

/// The child of a child, through a program that is too small to be lifted and one that is not.
#[test]
fn of_children() {
    let child = child();
    let child = child.to_str().expect("a path in UTF-8");
    let run = format!("env sh -c '{child}; sh -c \"{child}\"'");
    lifts(&Cmd::new(["sh", "-c", &run]), 2);
}

/// The parent of a child ends at once, as that of a daemon does, so only the environment shows that the child
/// belongs to the run. One whose parent lives needs no environment.
#[test]
fn whose_parent_has_ended() {
    let child = child();
    let text = format!(
        "(setsid {} > \"$1\" &) ; while ! [ -s \"$1\" ]; do sleep 0.1; done; cat \"$1\"",
        child.display()
    );
    let dir = tempfile::TempDir::new().expect("a folder");
    let out = dir.path().join("out").display().to_string();
    let outcome = Cmd::new(["sh", "-c", &text, "sh", &out]).lifted(LIFT);
    assert!(outcome.stdout.contains(" huge,") && outcome.own_lines().is_empty(), "{outcome:?}");
}

/// A child inherits what its parent gave it. hugelift adds one variable.
#[test]
fn inherit_what_they_would_without_hugelift() {
    let state = fat("state").build();
    let cmd = Cmd::new(["sh", "-c", &format!("exec {} quick <&- 7</dev/null", state.display())]);
    let stable = |text: &str| {
        let ours = ["HUGELIFT_", "/proc/self/environ"];
        let own = |line: &&str| !ours.iter().any(|w| line.contains(w));
        text.lines().filter(own).map(|line| format!("{line}\n")).collect()
    };
    let lifted = same_lines(&cmd, LIFT, stable);
    let lines = lifted.stdout.lines().filter(|line| line.contains("HUGELIFT_"));
    // `cargo test` sets what the build script says.
    let lines = lines.filter(|line| !line.contains("HUGELIFT_BUILD_"));
    let names: Vec<&str> =
        lines.filter(|l| !l.starts_with("/proc/self/environ") && !l.contains("HUGELIFT_STORE")).collect();
    assert!(matches!(names[..], [name] if name.contains("HUGELIFT_RUN=")), "{names:?}");
}

#[test]
fn many_forks_and_execs() {
    let child = child();
    let text = format!(
        "i=0; while [ $i -lt 100 ]; do {} brief >/dev/null || exit 1; i=$((i+1)); done; {0}",
        child.display()
    );
    lifts(&Cmd::new(["sh", "-c", &text]), 1);
    let text =
        "i=0; while [ $i -lt 300 ]; do /bin/true || exit 1; (exit 3); [ $? = 3 ] || exit 2; i=$((i+1)); done";
    lifts(&Cmd::new(["sh", "-c", text]), 0);
}

/// wait(2) finds no child that the program has not started.
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
fn verbose_runs_report_each_child() {
    let child = child();
    let cmd = Cmd::new(["sh", "-c", &format!("{}; true", child.display())]);
    let said = cmd.lifted(&[LIFT, &["-v"]].concat());
    let told = said.own_lines().into_iter().filter(|l| l.contains("while it ran, after")).count();
    assert_eq!(told, 1, "{said:?}");
}

/// A child that another program traces is left alone, and nothing is said.
#[test]
fn a_child_that_cannot_be_lifted_goes_on() {
    need!("strace");
    let text = format!("HUGELIFT_RUN= strace -f -o /dev/null sh -c '{} brief'", child().display());
    let run = Cmd::new(["sh", "-c", &text]).lifted(LIFT);
    assert!(run.stdout.contains(" small,") && run.stderr.is_empty(), "{run:?}");
}

/// AddressSanitizer's runtime must be the first library of a program, and finds its errors.
#[test]
fn with_address_sanitizer() {
    let asan = crate::common::plain("sanitized").flags(&["-fsanitize=address"]).build();
    let cmd = Cmd::new(["sh", "-c", &format!("{}; echo $?", asan.display())]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(LIFT));
    assert_eq!((bare.stdout, bare.end), (lifted.stdout, lifted.end));
    assert_eq!(bare.stderr.lines().count(), lifted.stderr.lines().count(), "{}", lifted.stderr);
}
