// SPDX-License-Identifier: Apache-2.0
//! Re-lays real executables and shared objects of this machine. Each copy is put in place of the original
//! in its own mount namespace, and the program must behave as before.

use crate::align::relaid::relaid;
use crate::common::build::must;
use crate::common::held::needed;
use crate::common::level::{rounds, some};
use crate::common::run::difference;
use crate::common::{Cmd, find, skipped};
use crate::{need, need_root};
use hugelift_core::addr::PageSize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file, and a command that runs it or loads it.
struct Try {
    file: PathBuf,
    cmd: Cmd,
}

/// Programs by their name in PATH, with arguments that make their output repeatable.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "node",
        &["-e", "console.log(require('crypto').createHash('sha256').update('x'.repeat(1e6)).digest('hex'))"],
    ),
    ("mariadbd", &["--no-defaults", "--version"]),
    ("mariadb-upgrade", &["--version"]),
    ("go", &["version"]),
    ("perl", &["-e", "my %h; $h{$_ % 977} += $_ for 1..100000; print join ',', map { $h{$_} } sort keys %h"]),
    ("gdb", &["-nx", "-batch", "-ex", "python print(sum(range(1000)))", "-ex", "print 6*7"]),
    ("git", &["--version"]),
    ("bash", &["-c", "for i in {1..1000}; do ((s += i)); done; echo $s"]),
    ("busybox", &["sh", "-c", "echo $((6*7))"]),
    ("redis-server", &["--version"]),
    ("sysbench", &["--version"]),
    ("cmake", &["--help-full"]),
    ("ctest", &["--help-full"]),
    ("cpack", &["--help-full"]),
    ("ninja", &["--version"]),
    ("perf", &["version"]),
    ("php", &["-v"]),
    ("qemu-system-x86_64", &["-machine", "help"]),
    ("qemu-system-aarch64", &["-machine", "help"]),
    ("ld.lld-19", &["--version"]),
    ("ld.lld", &["--version"]),
    ("mold", &["--version"]),
    ("docker", &["--version"]),
    ("naga", &["--version"]),
    ("chromedriver", &["--version"]),
    ("yaml2obj-14", &["--version"]),
    ("obj2yaml-14", &["--version"]),
    ("llvm-tblgen-14", &["--version"]),
    ("rustup", &["--version"]),
];

/// Shared objects by the beginning of their name in the loader's cache. The test loads them, binds every
/// symbol and runs their constructors.
const LIBRARIES: &[&str] = &[
    "libLLVM-16",
    "libLLVM-17",
    "libLLVM-18",
    "libclang-cpp.so.14",
    "libclang-19",
    "libz3",
    "libicudata",
    "libx265",
    "libaom",
    "librsvg-2",
    "libgtk-3",
    "libSvtAv1Enc",
    "libcrypto",
    "libstdc++",
    "libc.so",
    "libpython3",
];

fn tries(dir: &Path) -> Vec<Try> {
    let mut all = Vec::new();
    let mut add = |file: Option<PathBuf>, cmd: Cmd| {
        if let Some(file) = file.and_then(|f| f.canonicalize().ok()) {
            all.push(Try { file, cmd });
        }
    };
    for (name, args) in PROGRAMS {
        let Some(program) = find(name).or_else(|| sbin(name)) else { continue };
        add(Some(program.clone()), Cmd::new([&program]).args(*args));
    }
    if let Some(python) = system_python() {
        let script =
            "import hashlib, json; print(hashlib.sha256(json.dumps(list(range(9999))).encode()).hexdigest())";
        add(Some(python.clone()), Cmd::new([&python]).args(["-I", "-c", script]));
        for library in LIBRARIES.iter().filter_map(|name| cached(name)) {
            let load = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW); print('loaded')";
            add(Some(library.clone()), Cmd::new([&python]).args(["-I", "-c", load]).arg(&library));
        }
    }
    let source = dir.join("sort.cpp");
    std::fs::write(&source, SOURCE).expect("write a source");
    let compiled = |compiler: &Path, args: &[&str]| {
        Cmd::new([compiler]).args(["-O2", "-S", "-o", "-"]).args(args).arg(&source)
    };
    let names =
        ["clang++-19", "clang++", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14"];
    if let Some(clang) = names.iter().find_map(|name| find(name)) {
        for object in needed(&clang) {
            add(Some(object), compiled(&clang, &[]));
        }
    }
    if let Some(gcc) = find("g++") {
        let part = |name: &str| {
            let path = must(Command::new(&gcc).arg(format!("-print-prog-name={name}")));
            Some(PathBuf::from(path.trim())).filter(|p| p.is_absolute())
        };
        add(part("cc1plus"), compiled(&gcc, &[]));
        add(part("cc1"), compiled(&gcc, &["-x", "c", "-DC"]));
        let whole = ["-flto", "-shared", "-fPIC", "-O2", "-o", "/dev/null"];
        add(part("lto1"), Cmd::new([&gcc]).args(whole).arg(&source));
    }
    if let Some(go) = find("go") {
        let tools = PathBuf::from(must(Command::new(&go).args(["env", "GOTOOLDIR"])).trim());
        for tool in ["compile", "link", "asm", "vet", "cover", "fix", "cgo"] {
            let tool = tools.join(tool);
            add(Some(tool.clone()), Cmd::new([&tool]).arg("-V=full"));
        }
        let source = dir.join("hello.go");
        std::fs::write(&source, "package main\nfunc main() { println(6 * 7) }\n").expect("write");
        let gofmt = go.canonicalize().expect("go").with_file_name("gofmt");
        add(Some(gofmt.clone()), Cmd::new([&gofmt]).arg(&source));
    }
    if find("rustc").is_some() {
        rust(dir, &mut add);
    }
    if let Some(java) = find("java").and_then(|j| j.canonicalize().ok()) {
        let libjvm = java.parent().and_then(Path::parent).map(|home| home.join("lib/server/libjvm.so"));
        let source = dir.join("Hello.java");
        std::fs::write(&source, JAVA).expect("write a source");
        // A JVM may come without a compiler: a JRE only prints its version.
        let jdk = java.with_file_name("javac").exists();
        let cmd = Cmd::new([&java]);
        add(libjvm, if jdk { cmd.arg(&source) } else { cmd.arg("-version") });
    }
    let mut seen = BTreeSet::new();
    all.retain(|t| seen.insert(t.file.clone()));
    all
}

fn rust(dir: &Path, add: &mut impl FnMut(Option<PathBuf>, Cmd)) {
    let sysroot = PathBuf::from(must(Command::new("rustc").args(["--print", "sysroot"])).trim());
    let source = dir.join("lib.rs");
    std::fs::write(&source, "pub fn f(v: &mut Vec<String>) { v.sort(); v.dedup() }").expect("write");
    let rustc = sysroot.join("bin/rustc");
    let compile = ["--crate-type=lib", "--emit=asm=-", "-O", "-Cdebuginfo=0"];
    let compile = Cmd::new([&rustc]).args(compile).arg(&source);
    for object in needed(&rustc) {
        add(Some(object), compile.clone());
    }
    for tool in ["cargo", "rustdoc", "clippy-driver"] {
        let tool = sysroot.join("bin").join(tool);
        add(Some(tool.clone()), Cmd::new([&tool]).arg("--version"));
    }
    let host = must(Command::new(&rustc).args(["--print", "host-tuple"]));
    for tool in ["rust-lld", "wasm-component-ld"] {
        let tool = sysroot.join("lib/rustlib").join(host.trim()).join("bin").join(tool);
        add(Some(tool.clone()), Cmd::new([&tool]).args(["-flavor", "gnu", "--version"]));
    }
}

/// Returns the system's python3, not a shim of a version manager, which would start another file.
fn system_python() -> Option<PathBuf> {
    [Path::new("/usr/bin/python3").to_path_buf()].into_iter().find(|p| p.exists()).or_else(|| find("python3"))
}

fn sbin(name: &str) -> Option<PathBuf> {
    Some(Path::new("/usr/sbin").join(name)).filter(|p| p.exists())
}

/// Returns the first 64-bit shared object in the loader's cache whose name begins with `name`.
fn cached(name: &str) -> Option<PathBuf> {
    let ldconfig = sbin("ldconfig").or_else(|| find("ldconfig"))?;
    let listed = must(Command::new(ldconfig).arg("-p"));
    let lines = listed.lines().filter(|l| l.trim_start().starts_with(name) && l.contains("64"));
    lines.filter_map(|l| l.split(" => ").nth(1)).map(PathBuf::from).next()
}

const SOURCE: &str = "#ifdef C
int twice(int n) { return 2 * n; }
#else
#include <algorithm>
#include <string>
#include <vector>
std::string least(std::vector<std::string> v) { std::sort(v.begin(), v.end()); return v.at(0); }
#endif
";

const JAVA: &str = "public class Hello {
    public static void main(String[] args) {
        long sum = 0;
        for (int i = 0; i < 3000000; i++) sum += Integer.toString(i).hashCode();
        System.out.println(sum);
    }
}
";

/// Returns the command, run in a mount namespace where `copy` is in the place of `file`.
fn in_place(cmd: &Cmd, copy: &Path, file: &Path) -> Cmd {
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let words: Vec<OsString> =
        ["unshare", "-m", "sh", "-c", script, "sh"].iter().map(OsString::from).collect();
    cmd.clone().under(words).under([copy, file])
}

/// Returns the bytes in whole huge pages of the copy, and how many of them the page cache maps huge.
/// `None` means that the file gains nothing.
fn try_one(one: &Try, page: PageSize) -> Option<(u64, u64)> {
    let name = one.file.display();
    let copy = match relaid(&one.file, page) {
        Ok(copy) => copy,
        Err(why) => {
            assert!(why.contains("nothing to gain"), "{why}");
            return None;
        }
    };
    let bare = one.cmd.bare();
    let again = in_place(&one.cmd, &copy.path, &one.file).bare();
    let words = one.cmd.words(None);
    assert_eq!(again.end, bare.end, "{name}: {words:?}\n{}", again.stderr);
    for (what, a, b) in [("stdout", &bare.stdout, &again.stdout), ("stderr", &bare.stderr, &again.stderr)] {
        if let Some(lines) = difference(what, a, b) {
            panic!("{name}: {words:?}: {lines}");
        }
    }
    assert!(!bare.stdout.is_empty() || !bare.stderr.is_empty() || bare.end == crate::common::End::Code(0));
    Some(copy.cached)
}

#[test]
fn real_files_run_the_same_and_get_their_huge_pages() {
    need_root!();
    need!("unshare", "readelf");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let all = tries(dir.path());
    let (mut done, mut small, mut short) = (0, Vec::new(), Vec::new());
    // The least number of files with a huge page.
    let enough = rounds(12, 40);
    for one in some(&all, 3) {
        let name = one.file.display().to_string();
        match try_one(one, PageSize::MB2) {
            Some((wanted, got)) => {
                done += 1;
                println!("{name}: {} of {} MB huge in the page cache", got >> 20, wanted >> 20);
                if got < wanted {
                    short.push((name, got >> 20, wanted >> 20));
                }
            }
            None => small.push(one),
        }
    }
    println!("{done} files, and {} with nothing to gain", small.len());
    // Files that gain nothing from 2 MB pages are re-laid for smaller pages, and must run as before.
    for one in small.into_iter().take(enough / 4) {
        let moved = try_one(one, PageSize::new(64 << 10).expect("a size")).is_some();
        println!("{}: nothing to gain; of 64 kB: {moved}", one.file.display());
    }
    // A file system without large folios has no huge page for any file.
    if short.len() == done {
        skipped("this file system has no huge pages in the page cache");
    } else {
        assert!(short.is_empty(), "not all huge: {short:?}");
    }
    if done < enough {
        skipped(&format!("only {done} of {enough} files on this machine have a whole huge page"));
    }
}
