// SPDX-License-Identifier: Apache-2.0
//! The programs that show how the library is used, built with what `make install` installs.

use super::built::{example, library, top};
use crate::common::build::code_file;
use crate::common::{Cmd, End, find};
use crate::{need, need_root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// An installation in a folder of its own.
struct Installed {
    dir: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let dir = TempDir::new().expect("a temporary directory");
        let mut script = Command::new(top().join("ci/install.sh"));
        // The folder is both where the files are put and where they will be used.
        script.env("PREFIX", dir.path()).env("DESTDIR", "").env("COMMAND", "").env("LIBRARY", library());
        // The loader's cache is the machine's.
        script.env("LDCONFIG", format!("touch {}/ldconfig-ran", dir.path().display()));
        let done = script.stdin(Stdio::null()).output().expect("ci/install.sh starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Installed { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds a program of `examples/library` as its first lines say, with megabytes of code, and returns it.
    fn build(&self, compiler: &str, demo: &str, flags: &[&str]) -> PathBuf {
        let out = self.path(demo).with_extension("out");
        let code = format!(
            "__asm__(\".pushsection .text\\n.balign 64\\n.incbin \\\"{}\\\"\\n.popsection\\n\");",
            code_file(6 << 20).display()
        );
        let more = self.path("code.c");
        std::fs::write(&more, code).expect("write the code");
        let mut cc = Command::new(compiler);
        cc.arg("-o").arg(&out).args(flags).arg(example(demo)).arg(&more);
        cc.args(self.pkg_config()).arg(format!("-Wl,-rpath,{}", self.path("lib").display()));
        let made = cc.stdin(Stdio::null()).output().expect("the compiler starts");
        assert!(made.status.success(), "{cc:?}\n{}", String::from_utf8_lossy(&made.stderr));
        out
    }

    /// Returns the flags that pkg-config prints; those it should print where there is none.
    fn pkg_config(&self) -> Vec<String> {
        if find("pkg-config").is_none() {
            return vec![
                format!("-I{}", self.path("include").display()),
                format!("-L{}", self.path("lib").display()),
                "-lhugelift".into(),
            ];
        }
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs", "hugelift"]).env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let done = command.output().expect("pkg-config starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).split_whitespace().map(String::from).collect()
    }

    fn compat(&self) -> String {
        format!("-I{}", self.path("include/hugelift/compat").display())
    }
}

/// Runs a program that must succeed, and returns what it writes.
fn output(cmd: Cmd) -> String {
    let done = cmd.bare();
    assert_eq!((done.end, done.stderr.as_str()), (End::Code(0), ""), "{}", done.stdout);
    done.stdout
}

fn run(program: &Path) -> Cmd {
    Cmd::new([program])
}

#[test]
fn in_c() {
    let text = output(run(&Installed::new().build("cc", "self.c", &["-Wall", "-Wextra", "-Werror"])));
    assert!(text.contains("on huge pages\n"), "{text}");
    let bytes: u64 = text.lines().last().and_then(|l| l.split(' ').next()?.parse().ok()).expect("a number");
    assert!(bytes >= 4 << 20, "{text}");
}

#[test]
fn in_cpp() {
    need!("c++");
    let flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror"];
    let text = output(run(&Installed::new().build("c++", "self.cpp", &flags)));
    assert!(text.contains("on huge pages\ncode -1: invalid argument\n"), "{text}");
}

#[test]
fn in_python() {
    let Some(python) = find("python3") else { skip!("needs python3") };
    let installed = Installed::new();
    let words = Cmd::new([python.as_os_str(), example("self.py").as_os_str()])
        .env("PYTHONPATH", installed.path("share/hugelift/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HUGELIFT_LIBRARY", installed.path("lib/libhugelift.so.0"));
    let text = output(words);
    assert!(text.contains("bytes of text on huge pages\nrefused: data can be lifted"), "{text}");
}

#[test]
fn users_of_elfremapper() {
    need!("c++");
    let installed = Installed::new();
    let program = installed.build("c++", "elfremapper.cpp", &[&installed.compat()]);
    let text = output(run(&program));
    let pages = text.lines().find_map(|line| line.strip_prefix("pages: ")).expect("a number of pages");
    assert!(pages.parse::<u64>().expect("a number") >= 2, "{text}");
}

#[test]
fn users_of_iodlr() {
    let installed = Installed::new();
    let program = installed.build("cc", "large_page.c", &[&installed.compat(), "-Wall", "-Werror"]);
    assert_eq!(output(run(&program)), "map_ok (success)\n");
    assert_eq!(output(run(&program).arg("large_page[.]out$")), "map_ok (success)\n");
    for (pattern, status) in [("[", "map_invalid_regex"), ("no such object", "map_region_not_found")] {
        let done = run(&program).arg(pattern).bare();
        assert_eq!(done.end, End::Code(1), "{}", done.stdout);
        assert!(done.stdout.starts_with(status), "{}", done.stdout);
    }
}

#[test]
fn the_loader_is_told_of_the_new_library_unless_a_package_is_made() {
    need_root!();
    assert!(Installed::new().path("ldconfig-ran").exists());
    let dir = TempDir::new().expect("a temporary directory");
    let mut script = Command::new(top().join("ci/install.sh"));
    script.env("PREFIX", "/usr").env("DESTDIR", dir.path()).env("COMMAND", "").env("LIBRARY", library());
    script.env("LDCONFIG", format!("touch {}/ldconfig-ran", dir.path().display()));
    assert!(script.stdin(Stdio::null()).status().expect("ci/install.sh starts").success());
    assert!(dir.path().join("usr/lib/libhugelift.so.0").exists());
    assert!(!dir.path().join("ldconfig-ran").exists());
}

#[test]
fn found_by_cmake() {
    need!("cmake", "make");
    let installed = Installed::new();
    let source = installed.path("project");
    std::fs::create_dir(&source).expect("a folder");
    std::fs::copy(example("self.c"), source.join("self.c")).expect("copy");
    let project = "cmake_minimum_required(VERSION 3.10)\nproject(demo C)\nfind_package(hugelift 0.1 REQUIRED)\n\
                   add_executable(one self.c)\ntarget_link_libraries(one hugelift::hugelift)\n\
                   add_executable(two self.c)\ntarget_link_libraries(two hugelift::static)\n";
    std::fs::write(source.join("CMakeLists.txt"), project).expect("write");
    let build = installed.path("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.dir.path().display());
    let (source, folder) = (source.display().to_string(), build.display().to_string());
    for words in [&["cmake", "-S", &source, "-B", &folder, &prefix][..], &["cmake", "--build", &folder][..]] {
        let done = Cmd::new(words).bare();
        assert_eq!(done.end, End::Code(0), "{}{}", done.stdout, done.stderr);
    }
    // Another version is not taken for the one that is asked for.
    for (version, fits) in
        [("0.1.0 EXACT", true), ("0.2", false), ("0.1.9", false), ("1.0", false), ("0", true)]
    {
        let other = installed.path("other");
        std::fs::create_dir_all(&other).expect("a folder");
        let project = format!(
            "cmake_minimum_required(VERSION 3.10)\nproject(demo C)\nfind_package(hugelift {version} REQUIRED)\n"
        );
        std::fs::write(other.join("CMakeLists.txt"), project).expect("write");
        let other = other.display().to_string();
        let found = Cmd::new(["cmake", "-S", &other, "-B", &format!("{folder}-{fits}"), &prefix]).bare();
        assert_eq!(found.end == End::Code(0), fits, "{version}: {}{}", found.stdout, found.stderr);
    }
    for program in ["one", "two"] {
        let text = output(run(&build.join(program)));
        assert!(text.contains("bytes of text on huge pages"), "{text}");
    }
}
