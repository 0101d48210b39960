// SPDX-License-Identifier: Apache-2.0
//! Programs that read all their work from stdin or a script, and print the result.

use super::*;
use crate::common::find;
use crate::{need, need_root, skip};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

/// Runs a program that prints its result and then waits for the end of its stdin.
fn script(program: &Path, args: &[&str], lifted: bool) -> Result<Run, String> {
    let words: Vec<OsString> =
        std::iter::once(program.into()).chain(args.iter().map(OsString::from)).collect();
    let mut load = Load::start(&words, lifted, &[], &[])?;
    let mut out = BufReader::new(load.child.stdout.take().expect("stdout"));
    let mut result = String::new();
    assert!(out.read_line(&mut result).expect("a line") > 0, "{words:?} ended without a result");
    load.look();
    drop(load.child.stdin.take());
    out.read_to_string(&mut result).expect("the rest");
    Ok(load.end(result))
}

fn check(name: &str, program: &Path, args: &[&str], parts: &[&str]) {
    prime(program);
    if let Err(why) = script(program, args, false) {
        skip!("{why}");
    }
    compare(name, |lifted| script(program, args, lifted).expect("as before"), parts);
}

#[test]
fn node_sorts_and_sums() {
    need_root!();
    need!("node");
    const SCRIPT: &str = "const m = new Map(); let x = 1; \
        for (let i = 0; i < 600000; i++) { x = (x * 48271) % 2147483647; m.set('k' + x, i); } \
        const keys = [...m.keys()].sort(); let h = 0; \
        for (const k of keys) h = (h * 31 + k.length + m.get(k)) % 1000000007; \
        console.log(m.size, h); process.stdin.resume()";
    let node = find("node").expect("node").canonicalize().expect("node");
    check("node", &node, &["-e", SCRIPT], &["text", "rodata"]);
}

#[test]
fn python_builds_a_dictionary() {
    need_root!();
    need!("python3");
    const SCRIPT: &str = "import sys, hashlib\n\
        d = {}\n\
        for i in range(700000): d['key%d' % (i * 7919 % 1000003)] = i\n\
        h = hashlib.sha256()\n\
        for k in sorted(d): h.update(k.encode() + b'%d' % d[k])\n\
        print(len(d), h.hexdigest(), flush=True)\n\
        sys.stdin.read()\n";
    let ask =
        Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().expect("python3");
    let python = PathBuf::from(String::from_utf8(ask.stdout).expect("UTF-8").trim());
    check("python", &python.canonicalize().expect("python"), &["-c", SCRIPT], &["heap"]);
}

#[test]
fn clang_compiles() {
    need_root!();
    need!("clang-19");
    let clang = find("clang-19").expect("clang-19").canonicalize().expect("clang-19");
    let mut source = String::from("#include <stddef.h>\n");
    for i in 0..400 {
        source += &format!(
            "struct s{i} {{ int a; long b[{}]; }};\n\
             long f{i}(struct s{i} *s, size_t n) {{ long r = s->a; \
             for (size_t i = 0; i < n; i++) r += s->b[i % {}] * {i} ^ (r >> 3); return r; }}\n",
            i + 1,
            i + 1
        );
    }
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let object = dir.path().join("out.o");
    let words: Vec<OsString> = [clang.as_os_str()]
        .into_iter()
        .chain(["-fintegrated-cc1", "-O2", "-x", "c", "-c", "-", "-o"].map(AsRef::as_ref))
        .chain([object.as_os_str()])
        .map(OsString::from)
        .collect();
    let run = |lifted| {
        let mut load = Load::start(&words, lifted, &[], &[])?;
        let mut stdin = load.child.stdin.take().expect("stdin");
        let status = format!("/proc/{}/wchan", load.child.id());
        // When clang waits for its source, all of clang is loaded.
        stdin.write_all(source.as_bytes()).expect("write");
        load.wait_for("reading its source", || {
            std::fs::read_to_string(&status).is_ok_and(|wchan| wchan.contains("pipe_read"))
        });
        load.look();
        drop(stdin);
        let run = load.end(String::new());
        let bytes = std::fs::read(&object).map_err(|e| e.to_string())?;
        std::fs::remove_file(&object).map_err(|e| e.to_string())?;
        assert!(bytes.len() > 10_000);
        Ok::<_, String>(Run { result: format!("{:?}", bytes), ..run })
    };
    prime(&clang);
    if let Err(why) = run(false) {
        skip!("{why}");
    }
    compare("clang", |lifted| run(lifted).expect("as before"), &["text", "rodata"]);
}
