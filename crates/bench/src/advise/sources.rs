// SPDX-License-Identifier: Apache-2.0
//! Generated files for programs to work on: the same bytes at each call.

use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes a file, unless it is there with as many bytes, and returns its path.
///
/// # Errors
/// It cannot be written.
pub fn file(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = dir.join(name);
    if fs::metadata(&path).is_ok_and(|seen| seen.len() == bytes.len() as u64 && !bytes.is_empty()) {
        return Ok(path);
    }
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Returns C with this number of functions.
pub fn c(functions: u64) -> Result<String> {
    let mut text = String::from("struct s { int k; double d; struct s *next; };\n");
    for n in 0..functions {
        writeln!(
            text,
            "static int g{n}(struct s *p, int b) {{ int t = {n}; while (p) {{ switch (p->k & 7) {{ case 1: t += b; break; \
             case 3: t ^= p->k * {n}; break; case 5: p->d *= 1.5; default: t--; }} p = p->next; }} return t; }}\n\
             int f{n}(int *a, struct s *p, int b) {{ int s = {n}; for (int i = 0; i < b; i++) s += a[i] * {n} ^ s; \
             return s + g{n}(p, s) / (b | 1); }}"
        )?;
    }
    Ok(text)
}

/// Returns C++ with this number of classes, templates and functions that use them; it needs no header.
pub fn cpp(functions: u64) -> Result<String> {
    let mut text = String::from(
        "template <class T, int N> struct A { T v[N]; T &at(int i) { return v[i % N]; } template <class F> T fold(F f) {\n\
         T s{}; for (auto &x : v) s = f(s, x); return s; } };\n\
         struct B { virtual ~B() {} virtual int run(int) const = 0; };\n\
         template <int N> constexpr int fib = fib<N - 1> + fib<N - 2>;\n\
         template <> constexpr int fib<0> = 0; template <> constexpr int fib<1> = 1;\n",
    );
    for n in 0..functions {
        writeln!(
            text,
            "namespace n{n} {{ struct C : B {{ A<long, {a}> a; int run(int i) const override {{ auto c = a; \
             return (int)c.fold([i](long s, long x) {{ return s * {n} + x % (i | 1); }}); }} }};\n\
             template <class T> T twice(T x) {{ if constexpr (sizeof(T) > 4) return x * 2; else return x + x + fib<{f}>; }}\n\
             int use(const B &b, double d) {{ C c; for (int i = 0; i < {a}; i++) c.a.at(i) = twice(i) + twice(d) > {n}; \
             return b.run({n}) + c.run((int)twice(3L)); }} }}",
            a = n % 13 + 2,
            f = n % 20 + 2,
        )?;
    }
    Ok(text)
}

/// Returns Rust with this number of types and functions.
pub fn rust(functions: u64) -> Result<String> {
    let mut text = String::new();
    for n in 0..functions {
        writeln!(
            text,
            "#[derive(Clone, Debug, PartialEq)] pub enum E{n} {{ A(u32), B {{ x: String, y: Option<u8> }} }}\n\
             impl E{n} {{ pub fn get(&self) -> Option<u32> {{ match self {{ E{n}::A(v) => v.checked_add({n}), \
             E{n}::B {{ x, y: Some(y) }} => Some(x.len() as u32 ^ u32::from(*y)), _ => None }} }} }}\n\
             pub fn f{n}(a: &[E{n}]) -> u32 {{ a.iter().filter_map(E{n}::get).fold({n}, |s, x| s.wrapping_add(x * {n}) ^ s) }}"
        )?;
    }
    Ok(text)
}

/// Returns Go with this number of types and functions; it imports nothing.
pub fn go(functions: u64) -> Result<String> {
    let mut text = String::from("package work\n");
    for n in 0..functions {
        writeln!(
            text,
            "type T{n} struct {{ a []int; m map[string]int }}\n\
             func (t *T{n}) Run(x int) (s int) {{ for i, v := range t.a {{ switch v % 5 {{ case 1: s += i; case 2: s ^= v * {n}; \
             default: defer func() {{ s-- }}() }} }}; for k, v := range t.m {{ s += len(k) * v }}; return s + x }}\n\
             func F{n}(a []int) int {{ t := T{n}{{a: append(a, {n}), m: map[string]int{{\"k{n}\": {n}}}}}; return t.Run(len(a)) }}"
        )?;
    }
    Ok(text)
}

/// Returns a Java class with this number of methods in nested classes.
pub fn java(class: &str, methods: u64) -> Result<String> {
    let mut text = format!("import java.util.*;\nclass {class} {{\n");
    for n in 0..methods {
        writeln!(
            text,
            "static class C{n} {{ List<Map<String, Integer>> l = new ArrayList<>(); int f(int[] a) {{ int s = {n}; \
             for (int x : a) s += x * {n} ^ s; for (var m : l) for (var e : m.entrySet()) s += e.getValue() + e.getKey().length(); \
             Comparator<String> c = (p, q) -> p.length() - q.length(); return s + c.compare(\"a\" + s, \"b\"); }} }}"
        )?;
    }
    text.push_str("}\n");
    Ok(text)
}

/// Returns x86-64 or AArch64 assembly with this number of blocks.
pub fn assembly(blocks: u64) -> Result<String> {
    let mut text = String::from("\t.text\n");
    let code = match std::env::consts::ARCH {
        "aarch64" => "add x0, x0, #17\n\tldr x1, [x2, #8]\n\tcbz x1,",
        _ => "addq $17, %rax\n\tmovl 8(%rbx,%rcx,4), %edx\n\ttestl %edx, %edx\n\tje",
    };
    for n in 0..blocks {
        writeln!(text, "L{n}:\n\t{code} L{}\n\t.long {n} - 1", n / 2)?;
    }
    Ok(text)
}

/// Returns lines of a number and a word, in no order.
pub fn lines(count: u64) -> Result<String> {
    let mut text = String::new();
    for n in 0..count {
        writeln!(text, "{} word{}", n * 7919 % 1_000_003, n * 104_729 % 65_537)?;
    }
    Ok(text)
}

/// Returns this number of bytes that compress like text.
pub fn text(bytes: u64) -> Result<Vec<u8>> {
    let bytes = usize::try_from(bytes).context("bytes")?;
    let (mut text, mut random) = (String::with_capacity(bytes + 64), 7_u64);
    while text.len() < bytes {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = random >> 52;
        write!(
            text,
            "{:x} {} ",
            word * word % 4093,
            ["the", "of", "lines", "a", "page", "is"][(word % 6) as usize]
        )?;
    }
    let mut text = text.into_bytes();
    text.truncate(bytes);
    Ok(text)
}

/// Returns statements for MariaDB, one a line, each of which computes many functions many times.
pub fn sql(statements: u64) -> Result<String> {
    let mut text = String::new();
    for n in 0..statements {
        writeln!(
            text,
            "select benchmark(1000, concat(sha1(md5(concat(rand(), '{n}'))), format(sqrt({n}) * 3.5, 3), upper(reverse('ab{n}')), \
             date_add('2026-01-01', interval {n} day), json_extract('{{\"a\": [{n}, 2]}}', '$.a[1]'), \
             regexp_replace('a{n}b', '[0-9]+', 'n'), cast({n} / 7 as decimal(20, 9)), '{n}' like '%3%', conv({n}, 10, 16)));"
        )?;
    }
    Ok(text)
}

/// Returns a stream for `git fast-import`: commits that each change some lines of a file.
pub fn commits(count: u64) -> Result<String> {
    let mut lines: Vec<String> =
        (0..120).map(|n| format!("line {n} of the file, {}", n * 7919 % 997)).collect();
    let mut stream = String::new();
    for n in 0..count {
        for k in 0..5 {
            let at = (n * 31 + k * 47) as usize % lines.len();
            lines[at] = format!("line {at} as of {n}, {}", n * 104_729 % 9973);
        }
        let body = lines.join("\n");
        writeln!(
            stream,
            "commit refs/heads/main\ncommitter A <a@b> {} +0000\ndata 1\nx\nM 644 inline file\ndata {}\n{body}",
            1_700_000_000 + n,
            body.len()
        )?;
    }
    Ok(stream)
}
