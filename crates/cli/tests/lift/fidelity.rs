// SPDX-License-Identifier: Apache-2.0
//! Programs do the same under `hugelift run` as without it (output, exit status, death by signal),
//! and hugelift itself is silent. Real programs come first, then the built victims.

use crate::common::run::{NO_STORE, PATIENCE, end_group, same_as, shown};
use crate::common::{Cmd, End, HUGELIFT, build::must, each_backing, fat, find, open_dir, plain, same};
use crate::{need, skip};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Asserts that the command does the same with each backing. It runs bare only once.
fn agrees(cmd: &Cmd) -> crate::common::Outcome {
    let bare = cmd.bare();
    each_backing(|options| drop(same_as(&bare, cmd, options, str::to_string)));
    bare
}

#[test]
fn true_and_false() {
    assert_eq!(agrees(&Cmd::new(["/bin/true"])).end, End::Code(0));
    assert_eq!(agrees(&Cmd::new(["/bin/false"])).end, End::Code(1));
}

#[test]
fn exit_status() {
    for status in [0, 1, 7, 124, 125, 126, 127, 128, 255] {
        let cmd = Cmd::new(["sh", "-c", &format!("exit {status}")]);
        assert_eq!(same(&cmd, &["--backing", "thp"]).end, End::Code(status));
    }
}

#[test]
fn death_by_signal() {
    for (name, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("ABRT", 6), ("TRAP", 5), ("PIPE", 13)] {
        // ulimit, so that no core file is left in the source tree.
        let cmd = Cmd::new(["sh", "-c", &format!("ulimit -c 0; echo before; kill -{name} $$; echo after")]);
        let outcome = same(&cmd, &["--backing", "thp"]);
        assert_eq!((outcome.end, outcome.stdout.as_str()), (End::Signal(number), "before\n"));
    }
}

#[test]
fn a_pipe_on_stdin() {
    let text: String = (0..20000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(agrees(&Cmd::new(["cat"]).stdin(text.clone())).stdout, text);
    assert_eq!(agrees(&Cmd::new(["wc", "-l"]).stdin(text)).stdout, "20000\n");
}

#[test]
fn shell_pipelines() {
    need!("bash");
    let cmd = Cmd::new(["bash", "-c", "ls | wc -l"]).cwd("/");
    assert!(agrees(&cmd).stdout.trim().parse::<u32>().is_ok_and(|n| n > 5));
    agrees(&Cmd::new(["bash", "-c", "sleep 0.01 & wait $!; echo $?; (exit 3); echo $?; exec true"]));
}

#[test]
fn interpreters() {
    need!("node", "python3");
    agrees(&Cmd::new(["node", "-e", "console.log([3,1,2].sort(), 6*7); process.exit(5)"]));
    agrees(&Cmd::new(["python3", "-c", "import sys, json; print(json.dumps({'a': [1, 2]})); sys.exit(6)"]));
}

#[test]
fn rust_compiler() {
    need!("rustc");
    agrees(&Cmd::new(["rustc", "--version", "--verbose"]));
}

#[test]
fn java() {
    need!("java");
    agrees(&Cmd::new(["java", "-Xshare:auto", "-version"]));
}

#[test]
fn mariadbd() {
    need!("mariadbd");
    agrees(&Cmd::new(["mariadbd", "--no-defaults", "--version"]));
}

#[test]
fn cplusplus_compiler() {
    let names =
        ["clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14"];
    let Some(clang) = names.iter().find_map(|name| find(name)) else { skip!("needs clang++") };
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "#include <cstdio>\n#include <vector>\n#include <string>\n\
        int main() { std::vector<std::string> v{\"a\", \"b\"}; std::printf(\"%zu\\n\", v.size()); }\n";
    std::fs::write(dir.path().join("a.cc"), source).expect("write the source");
    let cmd = Cmd::new([&clang]).cwd(&dir).arg("-O1").arg("-c").arg("-o").arg("a.o").arg("a.cc");
    let bare = cmd.bare();
    assert_eq!(bare.end, End::Code(0), "{bare:?}");
    let object = || std::fs::read(dir.path().join("a.o")).expect("the object file");
    let expected = object();
    each_backing(|options| {
        std::fs::remove_file(dir.path().join("a.o")).expect("remove the object file");
        same_as(&bare, &cmd, options, str::to_string);
        assert!(object() == expected, "clang++ {options:?} made another object file");
    });
}

#[test]
fn go() {
    need!("go");
    agrees(&Cmd::new(["go", "version"]));
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "package main\nimport (\"fmt\"; \"os\"; \"net/http\"; \"sync\")\n\
        func main() {\n var w sync.WaitGroup; var m sync.Mutex; n := 0\n\
        for i := 0; i < 100; i++ { w.Add(1); go func() { m.Lock(); n += i; m.Unlock(); w.Done() }() }\n\
        w.Wait(); fmt.Println(n, http.StatusText(404), os.Args[1:])\n\
        if len(os.Args) > 2 { http.ListenAndServe(os.Args[2], nil) }\n os.Exit(9) }\n";
    std::fs::write(dir.path().join("main.go"), source).expect("write the source");
    let build = Cmd::new(["go", "build", "-o", "main", "main.go"]).cwd(&dir);
    // Bare first: the compiler's cache then makes the other builds quick.
    assert_eq!(build.bare().end, End::Code(0));
    let program = dir.path().join("main");
    let expected = std::fs::read(&program).expect("the Go program");
    each_backing(|options| {
        std::fs::remove_file(&program).expect("remove the Go program");
        same(&build, options);
        assert!(std::fs::read(&program).expect("the Go program") == expected, "go build {options:?}");
    });
    let outcome = agrees(&Cmd::new([&program]).arg("x"));
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("4950 Not Found [x]\n", End::Code(9)));
}

/// A server with a client: `hugelift run redis-server` serves as it does bare, and SIGTERM ends it
/// as it does bare.
#[test]
fn redis_serves_a_client() {
    need!("redis-server");
    let serve = |options: Option<&[&str]>| {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let socket = dir.path().join("s");
        let cmd =
            Cmd::new(["redis-server", "--port", "0", "--save", "", "--unixsocket"]).arg(&socket).cwd(&dir);
        let words = shown(&cmd.words(options));
        let mut child = cmd.command(options).spawn().expect("spawn");
        let deadline = Instant::now() + PATIENCE;
        let mut client = loop {
            match UnixStream::connect(&socket) {
                Ok(client) => break client,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Err(e) => {
                    end_group(&mut child);
                    panic!("{words}: {e}");
                }
            }
        };
        client.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
        let mut answers = Vec::new();
        for n in 0..200 {
            let value = "x".repeat(n);
            write!(client, "SET k{n} {n}{value}\r\nGET k{n}\r\nINCR count\r\n").expect("send");
            // "+OK\r\n", "$LEN\r\nVALUE\r\n", ":N\r\n"
            let (text, count) = (format!("{n}{value}"), format!("{}", n + 1));
            let mut answer =
                vec![0; 5 + 1 + format!("{}", text.len()).len() + 2 + text.len() + 2 + 1 + count.len() + 2];
            client.read_exact(&mut answer).expect("an answer");
            answers.push(String::from_utf8_lossy(&answer).into_owned());
        }
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("kill");
        let end = crate::common::run::wait(&mut child, deadline);
        end_group(&mut child);
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read stderr");
        assert_eq!(crate::common::own_lines(&stderr), Vec::<&str>::new(), "{words}");
        (answers, end)
    };
    let bare = serve(None);
    assert_eq!((bare.0[3].as_str(), bare.1), ("+OK\r\n$4\r\n3xxx\r\n:4\r\n", Some(End::Code(0))));
    each_backing(|options| assert_eq!(serve(Some(options)), bare, "{options:?}"));
}

/// The victims in the forms that the linkers make.
#[test]
fn all_kinds_of_victims() {
    let mut victims = vec![
        fat("state"),
        fat("state").flags(&["-no-pie"]),
        fat("state").flags(&["-static"]),
        fat("state").flags(&["-static-pie"]),
        fat("state").flags(&["-Wl,-z,noseparate-code"]),
        fat("state").flags(&["-Wl,-z,now,-z,relro"]),
    ];
    match find("x86_64-linux-musl-gcc") {
        Some(_) => victims.extend([
            fat("state").compiler("x86_64-linux-musl-gcc"),
            fat("state").compiler("x86_64-linux-musl-gcc").flags(&["-static"]),
        ]),
        None => crate::common::skipped("needs musl-gcc"),
    }
    for victim in victims {
        let outcome = agrees(&Cmd::new([victim.build()]));
        assert!(outcome.stdout.contains("wrong 0\n"), "{outcome:?}");
    }
}

/// Eight threads that a shared object's constructor has started keep running during the lift, and a
/// timer keeps firing.
#[test]
fn threads_before_the_entry_point() {
    let object = fat("threads").library().build();
    let dynamic = fat("threads").with(object).build();
    let whole = fat("threads").flags(&["-DWHOLE", "-static"]).build();
    for program in [dynamic, whole] {
        for _ in 0..3 {
            let outcome = agrees(&Cmd::new([&program]));
            assert!(outcome.stdout.ends_with("alive 8, wrong 0, timer fires\n"), "{outcome:?}");
        }
    }
}

/// Signals that arrive during the whole lift are delivered once each, in their order.
#[test]
fn signals_during_the_lift() {
    let object = fat("signals").library().build();
    let program = fat("signals").with(object).build();
    for _ in 0..3 {
        let outcome = agrees(&Cmd::new([&program]));
        let expected = "queued 2000, out of order 0, plain 1, sender 0, wrong 0\n";
        assert_eq!(outcome.stdout, expected, "{outcome:?}");
    }
}

/// Signals from outside during the start: SIGUSR1 arrives once, SIGTERM kills, SIGSTOP stops the
/// program and SIGCONT continues it.
#[test]
fn signals_from_outside() {
    let reaper = plain("reaper").build();
    let setup = plain("setup").build();
    for flags in [&["-pie"][..], &["-static"]] {
        let program = fat("counts").flags(flags).build();
        for (signal, said, end) in [
            (10, "usr1 1, wrong 0\n", "reaper: exited 0, left 0\n"),
            (15, "", "reaper: killed 15, left 0\n"),
            (19, "usr1 0, wrong 0\n", "reaper: exited 0, left 0\n"),
        ] {
            each_backing(|options| {
                for after in [0, 500, 1000, 2000, 3000, 5000, 7000, 10000, 15000] {
                    let outcome = Cmd::new([&program])
                        .arg(if signal == 19 { "100000" } else { "10000000" })
                        .under([setup.as_os_str(), "block=10".as_ref(), "--".as_ref()])
                        .under([&reaper])
                        .under([format!("signal={signal}:{after}"), "--".into()])
                        .lifted(options);
                    let got = (outcome.stdout.as_str(), outcome.stderr.as_str());
                    assert_eq!(got, (said, end), "signal {signal} after {after} us, {flags:?} {options:?}");
                }
            });
        }
    }
}

#[test]
fn scripts() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write the script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    };
    let sh = script("sh-script", "#!/bin/sh -e\necho \"$0\" \"$@\"\nexit 3\n");
    assert_eq!(agrees(&Cmd::new([&sh]).arg("a b").arg("c")).end, End::Code(3));
    let env = script("env-script", "#!/usr/bin/env -S sh -e\necho env \"$@\"\n");
    agrees(&Cmd::new([&env]).arg("x"));
    // An interpreter that is a script itself.
    let nested = script("nested", &format!("#!{}\nnot read\n", sh.display()));
    let outcome = agrees(&Cmd::new([&nested]).arg("deep"));
    assert!(outcome.stdout.contains("nested deep"), "{outcome:?}");
    // An interpreter that is fat: it is lifted, and reads its script.
    let fat_one = fat("state").build();
    let state = script("state-script", &format!("#!{} one two\n", fat_one.display()));
    assert!(agrees(&Cmd::new([&state]).arg("three")).stdout.contains("argv[1] one two\n"));
    // No #! at all: execvp(3) hands it to /bin/sh.
    let bare = script("no-interpreter", "echo plain \"$1\"; exit 4\n");
    let cmd = Cmd::new([&bare]).arg("y");
    let outcome = cmd.lifted(&[]);
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("plain y\n", End::Code(4)), "{outcome:?}");
    let env = cmd.under(["env"]).bare();
    assert_eq!((env.stdout, env.end), (outcome.stdout, outcome.end));
}

/// A program that the kernel runs but hugelift cannot lift: hugelift says so, and the program runs.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_program() {
    let flags = ["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"];
    let program = plain("tiny32").flags(&flags).build();
    let cmd = Cmd::new([&program]);
    let (bare, lifted) = (cmd.bare(), cmd.lifted(&[]));
    assert_eq!((bare.stdout.as_str(), bare.end), ("32\n", End::Code(42)));
    assert_eq!((&lifted.stdout, lifted.end), (&bare.stdout, bare.end), "{lifted:?}");
    assert!(matches!(lifted.own_lines()[..], [line] if line.contains("32-bit")), "{lifted:?}");
    assert_eq!(lifted.other_lines(), "");
    let quiet = cmd.lifted(&["--quiet"]);
    assert_eq!((quiet.stderr.as_str(), quiet.end), ("", End::Code(42)));
    let strict = cmd.lifted(&["--strict"]);
    assert_eq!((strict.stdout.as_str(), strict.end), ("", End::Code(125)), "{strict:?}");
}

/// The look-up in PATH and its failures are those of `env PROG`.
#[test]
fn lookup() {
    let dir = open_dir(&[]);
    let put = |name: &str, mode: u32, text: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    put("a/prog", 0o644, b"#!/bin/sh\necho a\n");
    put("b/prog", 0o755, b"#!/bin/sh\necho b \"$0\"\n");
    put("a/only", 0o644, b"#!/bin/sh\necho only\n");
    put("a/lost", 0o755, b"#!/no/such/interpreter\n");
    put("a/junk", 0o755, b"\x7fELF\x02\x01\x01\0 and then nothing that makes sense");
    put("a/empty", 0o755, b"");
    let path = ["a", "b"].map(|d| dir.path().join(d).display().to_string()).join(":");
    let env = find("env").expect("env is everywhere");
    let check = |word: &str, code: Option<i32>| {
        let cmd = Cmd::new([word, "arg"]).cwd(&dir).env("PATH", &path);
        let bare = cmd.clone().under([&env]).bare();
        let lifted = cmd.lifted(&[]);
        assert_eq!(
            (&lifted.stdout, lifted.end),
            (&bare.stdout, bare.end),
            "{word}: {lifted:?}, env: {bare:?}"
        );
        if let Some(code) = code {
            assert_eq!(lifted.end, End::Code(code), "{word}: {lifted:?}");
        }
        if code.is_some_and(|c| c >= 126) {
            assert!(matches!(lifted.own_lines()[..], [line] if line.contains(word)), "{word}: {lifted:?}");
        }
    };
    check("prog", Some(0)); // past the one in a/, which is not executable
    check("only", Some(126));
    check("missing", Some(127));
    check("./missing", Some(127));
    check("a/prog", Some(126)); // with a slash there is no look-up
    check("b/prog", Some(0));
    check("./b/prog", Some(0));
    check("b", Some(127));
    check("./b", Some(126)); // a directory
    check("lost", Some(127));
    check("junk", None);
    check("empty", None);
    check("b/prog/x", Some(126));
    check("", Some(127));
}

/// hugelift's own failures have env(1)'s exit statuses.
#[test]
fn own_failures() {
    let status = |args: &[&str]| {
        let out = Command::new(HUGELIFT).args(args).stdin(Stdio::null()).output().expect("run hugelift");
        assert!(out.stdout.is_empty(), "{args:?}: {out:?}");
        assert!(!out.stderr.is_empty(), "{args:?}: {out:?}");
        out.status.code()
    };
    assert_eq!(status(&["run"]), Some(125));
    assert_eq!(status(&["run", "--no-such-option", "true"]), Some(125));
    assert_eq!(status(&["run", "--backing", "gold", "true"]), Some(125));
    assert_eq!(status(&["run", "--page-size", "3M", "true"]), Some(125));
    assert_eq!(status(&["run", "--parts", "soul", "true"]), Some(125));
    assert_eq!(status(&["run", "--object", "[", "true"]), Some(125));
    assert_eq!(status(&["run", "--user", "no-such-user-here", "true"]), Some(125));
    assert_eq!(status(&["run", "--report", "/no/such/directory/r", "true"]), Some(125));
    assert_eq!(status(&["run", "--quiet", "-v", "true"]), Some(125));
}

/// hugelift's options end where the program begins, with and without `--`.
#[test]
fn options_after_the_program_are_its_own() {
    let with = |args: &[&str]| {
        let out = Command::new(HUGELIFT).arg("run").args(args).env("HUGELIFT_STORE", NO_STORE).output();
        let out = out.expect("run hugelift");
        (String::from_utf8_lossy(&out.stdout).into_owned(), out.status.code())
    };
    assert_eq!(with(&["echo", "--strict", "-v", "--", "x"]), ("--strict -v -- x\n".into(), Some(0)));
    assert_eq!(with(&["--", "echo", "--strict", "--", "x"]), ("--strict -- x\n".into(), Some(0)));
    assert_eq!(with(&["--backing=thp", "echo", "-n", "--help"]), ("--help".into(), Some(0)));
}

/// A Go program that starts the other programs of its toolchain.
#[test]
fn the_go_toolchain_is_lifted_too() {
    need!("go");
    let root = must(Command::new("go").args(["env", "GOROOT"]));
    let go = Path::new(root.trim()).join("bin/go");
    agrees(&Cmd::new([&go]).arg("env").arg("GOARCH"));
}
