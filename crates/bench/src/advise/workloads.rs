// SPDX-License-Identifier: Apache-2.0
//! Programs that do a fixed amount of work: that of one unit takes some milliseconds, and `n` units take `n` times as long.

use super::sources::{self, file};
use anyhow::{Context as _, Result, ensure};
use hugelift_measure::generated::{self, Linking};
use hugelift_measure::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the program that does `n` units of work, in a folder for what it needs.
pub type Make = fn(&Path, u64) -> Result<Program>;

/// A program to ask about.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Its name in the table.
    pub name: &'static str,
    /// Makes it; fails if the machine lacks something.
    pub make: Make,
    /// Whether its executable or its libraries have less than a huge page of code each, so that `align --separate` makes
    /// room for huge pages first.
    pub is_small: bool,
}

const fn large(name: &'static str, make: Make) -> Workload {
    Workload { name, make, is_small: false }
}

const fn small(name: &'static str, make: Make) -> Workload {
    Workload { name, make, is_small: true }
}

/// All programs, those with generated code last.
pub const WORKLOADS: [Workload; 38] = [
    large("clang++ -O2", |dir, n| clang(dir, n, &["-O2", "-c"])),
    large("clang++ -fsyntax-only", |dir, n| clang(dir, n * 4, &["-fsyntax-only"])),
    large("gcc -O2 (cc1)", |dir, n| gcc(dir, n, "gcc", "cc1", "-O2")),
    large("g++ -O0 (cc1plus)", |dir, n| gcc(dir, n, "g++", "cc1plus", "-O0")),
    large("rustc -O", |dir, n| rustc(dir, n, &["-O", "--emit", "obj"])),
    large("rustc, check", |dir, n| rustc(dir, n * 4, &["--emit", "metadata"])),
    large("go compile", go),
    large("node, JSON", |_, n| node(NODE_JSON, n)),
    large("node, new functions", |_, n| node(NODE_CODE, n)),
    small("python3", |_, n| Ok(counted(&["/usr/bin/python3", "-c", PYTHON], n))),
    large("java, hashes", java),
    large("javac", javac),
    large("cmake", cmake),
    large("gdb, Python", |_, n| gdb(n)),
    large("mariadbd --bootstrap", mariadbd),
    large("sbcl, compile", |_, n| sbcl(n)),
    large("fish", |_, n| {
        Ok(Program::new(["fish", "--no-config", "-c", &FISH.replace('N', &(n * 20).to_string())]))
    }),
    small("php", |_, n| Ok(counted(&["php", "-r", PHP], n))),
    small("perl", |_, n| Ok(counted(&["perl", "-e", PERL], n))),
    small("git log -p", git),
    small("sqlite3", |_, n| {
        Ok(Program::new(["sqlite3", ":memory:", &SQL.replace("COUNT", &(n * 10_000).to_string())]))
    }),
    small("tclsh", tclsh),
    small("zsh", |_, n| Ok(counted(&["zsh", "-f", "-c", ZSH, "zsh"], n))),
    small("jq", |_, n| Ok(Program::new(["jq", "-n", &JQ.replace("COUNT", &(n * 3000).to_string())]))),
    small("bc", |dir, n| with_input("bc", dir, &BC.replace("COUNT", &n.to_string()))),
    small("as", assembler),
    small("openssl passwd", openssl),
    small("sort", sort),
    small("xz -6", |dir, n| compress(dir, n, &["xz", "-6", "-T1", "-c"], 1 << 15)),
    small("zstd -9", |dir, n| compress(dir, n, &["zstd", "-9", "-q", "--single-thread", "-c"], 1 << 19)),
    small("gzip -6", |dir, n| compress(dir, n, &["gzip", "-6", "-c"], 1 << 19)),
    small("mawk", |_, n| Ok(Program::new(["mawk", &MAWK.replace("COUNT", &(n * 10_000).to_string())]))),
    large("generated, 15888 pages", |dir, n| jumps(dir, n, 33)),
    large("generated, 3972 pages", |dir, n| jumps(dir, n, 33 * 4)),
    large("generated, 993 pages", |dir, n| jumps(dir, n, 33 * 16)),
    large("generated, 397 pages", |dir, n| jumps(dir, n, 33 * 40)),
    large("generated, 199 pages", |dir, n| jumps(dir, n, 33 * 80)),
    large("generated, 50 pages", |dir, n| jumps(dir, n, 33 * 318)),
];

const NODE_JSON: &str = "const n = 2000 * process.argv[1]; let s = 0; \
    for (let i = 0; i < n; i++) s += JSON.parse(JSON.stringify({ i, a: [i, 'b' + i, { c: i / 3 }] })).a.length";
const NODE_CODE: &str = "const n = 100 * process.argv[1]; let s = 0; for (let i = 0; i < n; i++) \
    s += new Function('a', 'b', `let t = ${i}; for (const x of [a, b, ${i}]) { if (x % 3) t += x; else t -= b } \
    class C${i} { get v() { return t ?? ${i} } async *g() { yield* [t] } } \
    try { return new C${i}().v + a } catch ({ m }) { return m }`)(i, 7)";
const PYTHON: &str = "import sys, json, re, collections, decimal\nfor i in range(20 * int(sys.argv[1])):\n \
    d = {str(k): [k, k / 3, 'x' * (k % 9)] for k in range(60)}\n e = json.loads(json.dumps(d, indent=1))\n \
    c = collections.Counter(re.sub(r'[0-9]+', 'n', json.dumps(e)).split())\n \
    s = sorted(e.items(), key=lambda p: (p[1][0] % 7, p[0]))\n t = decimal.Decimal(i + 1).sqrt() * len(c)\n \
    u = '%s %r' % (t, s[3]); v = [format(x, '08.3f') for _, (_, x, _) in s]";
const PHP: &str = "$n = 300 * $argv[1]; for ($i = 0; $i < $n; $i++) { $a = []; \
    for ($k = 0; $k < 20; $k++) $a[\"k$k\"] = [$k, md5(\"$i $k\"), $k / 3]; \
    $b = unserialize(serialize($a)); uasort($b, fn($x, $y) => strcmp($x[1], $y[1])); \
    $c = preg_replace('/[0-9]+/', 'n', json_encode($b)); $d = sprintf('%08.3f %s', $i / 7, strrev($c)); }";
const PERL: &str = "my %h; for my $i (1 .. 2000 * $ARGV[0]) { my $k = ($i * 7919) % 40009; $h{$k} .= 'x'; \
    $h{$k} = '' if length $h{$k} > 20; my @p = sort { $a <=> $b } map { $_ * $i % 101 } 1 .. 8; \
    my $s = join ',', @p; $s =~ s/(\\d+)5/<$1>/g; $h{q(a)} = sprintf '%s %05.2f', uc $s, $i / 3 }";
const FISH: &str = "for i in (seq N); set a (math $i % 7); string match -rq '^[0-3]' $a; and set b (string upper x$a); end; true";
const SQL: &str = "create table t(a integer primary key, b text, c real); \
    with recursive r(i) as (select 1 union all select i + 1 from r where i < COUNT) \
    insert into t select i, printf('k%d', i * 7919 % 40009), i / 3.0 from r; \
    select count(*), sum(c), max(b) from (select b, sum(c) as c from t where b like '%7%' group by b order by 2);";
const ZSH: &str = "integer i n=$((600 * $1)); typeset -A h; for ((i = 0; i < n; i++)); do k=$((i * 7919 % 997)); \
    h[$k]=${(U)k}x; [[ $h[$k] == *3?x ]] && s=${h[$k]//[0-9]/n}; a=(${(on)=:-\"$i 5 $k\"}); done";
const JQ: &str =
    "reduce range(COUNT) as $i (0; . + ({a: $i, b: [$i, \"x\\($i)\"]} | tojson | fromjson | .b | length))";
const BC: &str = "scale = 60\nfor (i = 1; i <= 40 * COUNT; i++) { s = sqrt(i) * s / (i + 1) + e(i % 3) }\n";
const MAWK: &str = "BEGIN { for (i = 0; i < COUNT; i++) { k = i * 7919 % 40009; h[k] = h[k] + 1; s = sprintf(\"%d %s\", k, i); \
    gsub(/7/, \"x\", s); n += split(s, p, \" \") + length(p[2]) } }";
const CMAKE: &str = "cmake_minimum_required(VERSION 3.5)\nforeach(i RANGE COUNT)\n  string(SHA1 x \"a${x}\")\n  \
    string(REGEX REPLACE \"[0-9]+\" \"n\" y \"${x}\")\n  list(APPEND l ${y})\n  list(SORT l)\n  list(REMOVE_DUPLICATES l)\n  \
    if(i MATCHES \"00$\")\n    set(l)\n  endif()\n  math(EXPR z \"${i} * 3 % 7\")\nendforeach()\n";
const TCL: &str = "proc work {n} {\n for {set i 0} {$i < $n} {incr i} {\n  set k [expr {$i * 7919 % 997}]\n  \
    dict set d $k [string repeat x [expr {$k % 9}]]\n  regsub -all {[0-9]} \"$i,$k\" n s\n  \
    set l [lsort -integer [list $k $i 5 7 3]]\n  append t [format %05d [llength $l]]\n  \
    if {[string length $t] > 1000} {set t {}}\n }\n}\nwork [expr {4000 * [lindex $argv 0]}]\n";
const JAVA: &str = "class Work { public static void main(String[] a) { long s = 0; \
    java.util.HashMap<String, Long> h = new java.util.HashMap<>(); \
    for (long i = 0, n = 100000 * Long.parseLong(a[0]); i < n; i++) { String k = \"k\" + i * 7919 % 40009; \
    s += h.merge(k, i, Long::sum) + k.hashCode(); } System.out.println(s); } }";
const GDB: &str =
    "python for i in range(400 * COUNT): gdb.parse_and_eval('(%d + 2) * 3 > 7 ? 1.5 : sizeof(int)' % i)";
const SBCL: &str = "(dotimes (i COUNT) (compile nil `(lambda (a b) (let ((s ,i)) (loop for x in (list a b ,i) \
    do (if (evenp x) (incf s x) (decf s (* 2 x)))) (format nil \"~a\" s)))))";

/// Returns the command with the number of units as its last argument.
fn counted(words: &[&str], n: u64) -> Program {
    Program::new(words.iter().map(OsString::from)).arg(&n.to_string())
}

fn with_input(program: &str, dir: &Path, text: &str) -> Result<Program> {
    let input = file(dir, "input", text.as_bytes())?;
    let words = [program, "-l"];
    Ok(Program { input: Some(input), ..Program::new(words) })
}

fn printed(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.output().with_context(|| format!("no {name} in PATH"))?;
    ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8(out.stdout).with_context(|| format!("what {name} prints"))?.trim().to_string())
}

/// One job, so that the command itself compiles (`-fintegrated-cc1`).
fn clang(dir: &Path, n: u64, options: &[&str]) -> Result<Program> {
    let clang = crate::programs::find_clang().context("no clang++ in PATH")?;
    let source = file(dir, &format!("clang{n}.cpp"), sources::cpp(n * 3)?.as_bytes())?;
    let words = ["-fintegrated-cc1"].iter().chain(options).map(OsString::from);
    let program = Program::new(std::iter::once(clang.into()).chain(words).chain([source.into()]));
    Ok(if options.contains(&"-c") { into(program, dir) } else { program })
}

/// The compiler proper: the command gcc only waits for it.
fn gcc(dir: &Path, n: u64, driver: &str, compiler: &str, level: &str) -> Result<Program> {
    let path = printed(Command::new(driver).arg(format!("-print-prog-name={compiler}")))?;
    ensure!(Path::new(&path).is_absolute(), "no {compiler}");
    let (name, text) = match compiler {
        "cc1" => (format!("gcc{n}.c"), sources::c(n * 6)?),
        _ => (format!("gcc{n}.cpp"), sources::cpp(n * 6)?),
    };
    let source = file(dir, &name, text.as_bytes())?;
    let words = ["-quiet", level].map(OsString::from);
    Ok(into(Program::new([path.into(), source.into()].into_iter().chain(words)), dir))
}

/// The compiler proper: the rustc in PATH may be that of rustup, which only starts it.
fn rustc(dir: &Path, n: u64, options: &[&str]) -> Result<Program> {
    let sysroot = printed(Command::new("rustc").args(["--print", "sysroot"]))?;
    let source = file(dir, &format!("rustc{n}.rs"), sources::rust(n * 3)?.as_bytes())?;
    let compiler = Path::new(&sysroot).join("bin/rustc");
    let words = ["--crate-type", "lib", "-C", "codegen-units=1"];
    let words = words.iter().chain(options).map(OsString::from);
    Ok(into(Program::new(std::iter::once(compiler.into()).chain(words).chain([source.into()])), dir))
}

/// Returns the program with a file in the folder for its output. To /dev/null it must not go: rustc, as root, replaces that.
fn into(program: Program, dir: &Path) -> Program {
    let mut more = program.arg("-o");
    more.argv.push(dir.join("made").into());
    more
}

fn go(dir: &Path, n: u64) -> Result<Program> {
    let tools = printed(Command::new("go").args(["env", "GOTOOLDIR"]))?;
    let compiler = Path::new(&tools).join("compile");
    ensure!(compiler.is_file(), "no compile in go's GOTOOLDIR");
    let source = file(dir, &format!("go{n}.go"), sources::go(n * 10)?.as_bytes())?;
    let words = ["-p", "work"].map(OsString::from);
    let program = into(Program::new(std::iter::once(compiler.into()).chain(words)), dir);
    Ok(Program { argv: program.argv.into_iter().chain([source.into()]).collect(), ..program })
}

fn node(script: &str, n: u64) -> Result<Program> {
    printed(Command::new("node").arg("--version"))?;
    Ok(counted(&["node", "-e", script], n))
}

fn compiled(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let source = file(dir, &format!("{name}.java"), text.as_bytes())?;
    if !dir.join(format!("{name}.class")).is_file() {
        printed(Command::new("javac").arg("-d").arg(dir).arg(&source))?;
    }
    Ok(source)
}

fn java(dir: &Path, n: u64) -> Result<Program> {
    compiled(dir, "Work", JAVA)?;
    let words = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp"].map(OsString::from);
    Ok(Program::new(words.into_iter().chain([dir.into(), "Work".into(), n.to_string().into()])))
}

fn javac(dir: &Path, n: u64) -> Result<Program> {
    let source = file(dir, &format!("Many{n}.java"), sources::java(&format!("Many{n}"), n * 20)?.as_bytes())?;
    let words = ["javac", "-J-XX:+UseSerialGC", "-J-Xmx2g", "-d"].map(OsString::from);
    Ok(Program::new(words.into_iter().chain([dir.join("classes").into(), source.into()])))
}

fn cmake(dir: &Path, n: u64) -> Result<Program> {
    let script = file(dir, &format!("{n}.cmake"), CMAKE.replace("COUNT", &(n * 200).to_string()).as_bytes())?;
    Ok(Program::new(["cmake".into(), "-P".into(), OsString::from(script)]))
}

fn mariadbd(dir: &Path, n: u64) -> Result<Program> {
    let data = dir.join("data");
    fs::create_dir_all(&data)?;
    let input = file(dir, &format!("{n}.sql"), sources::sql(n)?.as_bytes())?;
    let words = [
        "mariadbd",
        "--no-defaults",
        "--bootstrap",
        "--user=root",
        "--skip-innodb",
        "--default-storage-engine=aria",
    ];
    let program = Program::new(words)
        .arg(&format!("--datadir={}", data.display()))
        .arg(&format!("--tmpdir={}", dir.display()));
    Ok(Program { input: Some(input), ..program })
}

fn gdb(n: u64) -> Result<Program> {
    Ok(Program::new(["gdb", "-nx", "-batch", "-ex", &GDB.replace("COUNT", &n.to_string())]))
}

fn sbcl(n: u64) -> Result<Program> {
    let words = ["sbcl", "--noinform", "--non-interactive", "--no-sysinit", "--no-userinit", "--eval"];
    Ok(Program::new(words).arg(&SBCL.replace("COUNT", &(n * 2).to_string())))
}

fn tclsh(dir: &Path, n: u64) -> Result<Program> {
    let script = file(dir, "work.tcl", TCL.as_bytes())?;
    Ok(Program::new(["tclsh".into(), OsString::from(script), n.to_string().into()]))
}

/// The commits of a repository that `git fast-import` makes, of which the last `n` times 10 are shown.
fn git(dir: &Path, n: u64) -> Result<Program> {
    const COMMITS: u64 = 60_000;
    let repository = dir.join("repository");
    if !repository.join("done").is_file() {
        fs::create_dir_all(&repository)?;
        printed(Command::new("git").arg("init").arg("-q").arg("--bare").arg(&repository))?;
        let stream = file(dir, "stream", sources::commits(COMMITS)?.as_bytes())?;
        let mut import = Command::new("git");
        import.arg("-C").arg(&repository).args(["fast-import", "--quiet"]);
        import.stdin(fs::File::open(stream)?);
        printed(&mut import)?;
        file(&repository, "done", b"")?;
    }
    let (path, count) = (OsString::from(repository), (n * 10).min(COMMITS).to_string());
    let words = ["--no-pager", "log", "-p", "-n", &count, "main"].map(OsString::from);
    Ok(Program::new(["git".into(), "-C".into(), path].into_iter().chain(words)))
}

fn assembler(dir: &Path, n: u64) -> Result<Program> {
    let source = file(dir, &format!("as{n}.s"), sources::assembly(n * 2000)?.as_bytes())?;
    Ok(into(Program::new([OsString::from("as"), source.into()]), dir))
}

fn openssl(dir: &Path, n: u64) -> Result<Program> {
    let words: String = (0..n * 4).map(|n| format!("word{n}\n")).collect();
    let input = file(dir, &format!("words{n}"), words.as_bytes())?;
    Ok(Program::new(
        ["openssl", "passwd", "-6", "-salt", "salt", "-in"]
            .map(OsString::from)
            .into_iter()
            .chain([input.into()]),
    ))
}

fn sort(dir: &Path, n: u64) -> Result<Program> {
    let input = file(dir, &format!("lines{n}"), sources::lines(n * 10_000)?.as_bytes())?;
    let words = ["sort", "--parallel=1", "-S", "1G", "-k2,2", "-k1n"].map(OsString::from);
    let program = Program::new(words.into_iter().chain([input.into()]));
    Ok(Program { env: vec![("LC_ALL".into(), "C.UTF-8".into())], ..program })
}

fn compress(dir: &Path, n: u64, words: &[&str], unit: u64) -> Result<Program> {
    let input = file(dir, &format!("text{}", n * unit), &sources::text(n * unit)?)?;
    Ok(Program::new(words.iter().map(OsString::from).chain([input.into()])))
}

/// The program with 64 MB of code, which calls every `every`th of its functions, at random. It is made once a folder: each
/// time its file is new.
fn jumps(dir: &Path, n: u64, every: u64) -> Result<Program> {
    const CALLS: u64 = 200_000;
    let link = dir.join("jumps");
    if !link.exists() {
        std::os::unix::fs::symlink(generated::jumps(64, Linking::Dynamic)?, &link)?;
    }
    Ok(Program::new([fs::canonicalize(link)?]).arg(&(n * CALLS).to_string()).arg(&every.to_string()))
}
