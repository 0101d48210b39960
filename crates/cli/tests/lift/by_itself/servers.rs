// SPDX-License-Identifier: Apache-2.0
//! Servers that lift themselves, under their load: redis patched by ten lines, and servers with the library preloaded.
//! All that can be on huge pages is, as with `hugelift run` and the same options, and the results are those of a bare run.

use super::built::{example, library, of_library};
use crate::common::HUGELIFT;
use crate::common::build::must;
use crate::common::run::NO_STORE;
use crate::loads::servers::{MariaDb, Redis, Server};
use crate::{need, need_root, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const OPTIONS: [&str; 4] = ["--parts", "text,rodata", "--backing", "thp"];

/// How a server is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Bare,
    Run,
    Preload,
    /// Its patch lifts it.
    Patched,
}

/// A server that is killed if a test fails.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The liftable and the huge bytes of text and read-only data of each object that has any, without the libraries that
/// lift.
type Coverage = BTreeMap<String, (u64, u64)>;

/// Starts a server on a copy of its data, makes it work, and returns the result and what was huge then.
fn serve(server: &dyn Server, template: &Path, way: Way) -> (String, Coverage) {
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let dir = home.path().join("data");
    must(Command::new("cp").arg("-a").arg(template).arg(&dir));
    // At the same addresses each time, the same huge pages lie within a part.
    let mut command = Command::new("setarch");
    command.arg("-R").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("HUGELIFT_STORE", NO_STORE);
    match way {
        Way::Run => {
            command.args([HUGELIFT, "run", "--eager", "--span", "inner"]).args(OPTIONS).arg("--");
        }
        Way::Preload => {
            command.env("LD_PRELOAD", library().join("libhugelift.so.0")).env("HUGELIFT", OPTIONS.join(" "));
        }
        Way::Patched => {
            command.env("REDIS_LIFT", "1");
        }
        Way::Bare => {}
    }
    command.args(server.words(&dir));
    let mut started = Started(command.spawn().expect("setarch starts"));
    let began = Instant::now();
    while !server.is_ready(&dir) {
        assert_eq!(started.0.try_wait().expect("wait"), None, "{way:?}: it ended before it was ready");
        assert!(began.elapsed() < Duration::from_secs(60), "{way:?}: it is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    let result = server.work(&dir);
    let pid = started.0.id();
    let inspect = Command::new(HUGELIFT).args(["inspect", "--json", &pid.to_string()]).output();
    let seen: Value = serde_json::from_slice(&inspect.expect("run inspect").stdout).expect("JSON of inspect");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::SIGTERM)
        .expect("kill");
    let began = Instant::now();
    while started.0.try_wait().expect("wait").is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "{way:?}: it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    (result, coverage(&seen))
}

fn coverage(seen: &Value) -> Coverage {
    let mut found = Coverage::new();
    for object in seen["objects"].as_array().expect("objects") {
        let path = object["path"].as_str().unwrap_or_default();
        let lifts = ["libhugelift", "libgcc_s"].iter().any(|name| path.contains(name));
        let parts = object["parts"].as_array().expect("parts").iter();
        for part in parts.filter(|part| !lifts && (part["part"] == "text" || part["part"] == "rodata")) {
            let bytes = |name: &str| part[name].as_u64().expect("a number");
            let sum = found.entry(path.into()).or_default();
            *sum = (sum.0 + bytes("liftable_bytes"), sum.1 + bytes("huge_bytes"));
        }
    }
    found.retain(|_, (liftable, _)| *liftable > 0);
    found
}

/// Compares a server that lifts itself in this way with a bare one and with `hugelift run`, which lifts the same, but
/// may have moved the program to a base at which other pages lie within a part: two at the most in an executable.
fn check(server: &dyn Server, template: &Path, way: Way) {
    let (bare, _) = serve(server, template, Way::Bare);
    let (by_run, expected) = serve(server, template, Way::Run);
    let (result, found) = serve(server, template, way);
    println!("{way:?}: {found:?}; hugelift run: {expected:?}");
    assert_eq!((&result, &by_run), (&bare, &bare), "{way:?}");
    for all in [&found, &expected] {
        assert!(all.values().all(|(liftable, huge)| huge == liftable) && !all.is_empty(), "{way:?}: {all:?}");
    }
    let sum = |all: &Coverage| all.values().map(|(_, huge)| huge).sum::<u64>();
    assert!(sum(&found).abs_diff(sum(&expected)) <= 4 << 20, "{way:?}: {found:?} {expected:?}");
}

#[test]
fn mariadb_by_preload() {
    need_root!();
    need!("mariadbd", "sysbench", "setarch");
    let server = MariaDb::find();
    match server.template() {
        Ok(template) => check(&server, template.path(), Way::Preload),
        Err(why) => skip!("{why}"),
    }
}

/// Builds redis with the patch, once, and returns the server. OpenSSL is linked statically, and the text is aligned: else
/// no part of it holds a whole huge page.
///
/// # Errors
/// Its source is not here.
fn patched_redis() -> Result<PathBuf, String> {
    const ALIGNED: &str = "-Wl,-z,max-page-size=0x200000";
    // Its speed does not matter. -O1 takes the compiler more than twice the time.
    const OPTIMIZATION: &str = "OPTIMIZATION=-O0";
    const PATCH: &str = include_str!("../../../../../examples/library/redis.patch");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let cache = cache.ok_or("there is no cache folder")?.join("hugelift/redis");
    let is_source = |path: &PathBuf| path.to_string_lossy().ends_with(".orig.tar.gz");
    let entries = std::fs::read_dir(&cache).into_iter().flatten();
    let source = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_source);
    let source = source.ok_or("needs the source of redis (ci/setup.sh test)")?;

    let mut hash = DefaultHasher::new();
    (PATCH, ALIGNED, OPTIMIZATION, &source).hash(&mut hash);
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{:x}", hash.finish()));
    if !built.join("src/redis-server").exists() {
        let fresh = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        let fresh = fresh.path();
        must(Command::new("tar").arg("xzf").arg(&source).args(["--strip-components=1", "-C"]).arg(fresh));
        let patch = example("redis.patch");
        must(Command::new("patch").args(["-p1", "-s", "-i"]).arg(patch).current_dir(fresh));
        let include = format!("CFLAGS=-g0 -I{}", of_library("include").display());
        let out = library().display();
        let link = format!("LIBCRYPTO_LIBS=-l:libcrypto.a -L{out} -lhugelift -Wl,-rpath,{out} {ALIGNED}");
        let mut make = Command::new("make");
        make.args([
            "-s",
            "-j2",
            "-C",
            "src",
            "redis-server",
            "MALLOC=libc",
            OPTIMIZATION,
            "REDIS_CFLAGS=-g0",
        ]);
        make.args(["USE_SYSTEMD=no", "BUILD_TLS=yes", "LIBSSL_LIBS=-l:libssl.a", &include, &link]);
        must(make.current_dir(fresh));
        if let Err(why) = std::fs::rename(fresh, &built) {
            assert!(built.join("src/redis-server").exists(), "{why}");
        }
    }
    Ok(built.join("src/redis-server"))
}

#[test]
fn redis_patched_by_ten_lines() {
    need_root!();
    need!("redis-cli", "redis-benchmark", "setarch", "make", "patch");
    let probe = Command::new("cc").arg("-print-file-name=libcrypto.a").output().expect("cc");
    if !probe.stdout.starts_with(b"/") {
        skip!("needs libcrypto.a");
    }
    let template = tempfile::TempDir::new().expect("a temporary directory");
    match patched_redis() {
        Ok(program) => {
            for way in [Way::Patched, Way::Preload] {
                check(&Redis(program.clone()), template.path(), way);
            }
        }
        Err(why) => skip!("{why}"),
    }
}
