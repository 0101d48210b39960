// SPDX-License-Identifier: Apache-2.0
//! The victims: small C programs, built once into the build directory.

use super::run::PATIENCE;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of generated code, and of generated constants, in a fat victim: at least two
/// whole huge pages of each, wherever they are loaded.
pub const FAT: usize = 6 << 20;

/// How to build a victim from `victims/NAME.c`.
#[derive(Clone, Debug, Hash)]
pub struct Victim {
    source: &'static str,
    compiler: &'static str,
    flags: Vec<OsString>,
    fat: usize,
    shared: bool,
    linked: Vec<PathBuf>,
}

/// Returns a victim with megabytes of code and constants.
pub fn fat(source: &'static str) -> Victim {
    Victim { fat: FAT, ..plain(source) }
}

/// Returns a victim that is too small to be lifted.
pub fn plain(source: &'static str) -> Victim {
    Victim { source, compiler: "cc", flags: vec![], fat: 0, shared: false, linked: vec![] }
}

impl Victim {
    /// Adds flags for the compiler.
    pub fn flags(mut self, flags: &[&str]) -> Victim {
        self.flags.extend(flags.iter().map(OsString::from));
        self
    }

    /// Sets another compiler than cc.
    pub fn compiler(mut self, compiler: &'static str) -> Victim {
        self.compiler = compiler;
        self
    }

    /// Sets the size in bytes of the generated code and of the generated constants.
    pub fn size(mut self, bytes: usize) -> Victim {
        self.fat = bytes;
        self
    }

    /// Builds a shared object.
    pub fn library(mut self) -> Victim {
        self.shared = true;
        self.flags(&["-shared", "-fPIC", "-DLIBRARY"])
    }

    /// Links it with this shared object, which the loader finds where it is now.
    pub fn with(mut self, library: PathBuf) -> Victim {
        self.linked.push(library);
        self
    }

    /// Builds it, unless an earlier test has built it, and returns its path.
    pub fn build(&self) -> PathBuf {
        self.try_build().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Like [`Victim::build`], but returns the output of the compiler if it fails.
    pub fn try_build(&self) -> Result<PathBuf, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims");
        let file = ["c", "S"].map(|ext| sources.join(self.source).with_extension(ext));
        let file = file.iter().find(|f| f.exists()).ok_or_else(|| format!("no source of {}", self.source))?;
        let mut hash = DefaultHasher::new();
        self.hash(&mut hash);
        let headers = ["fat.h", "huge_code.h", "live.h", "live_waits.h"].map(|header| sources.join(header));
        for source in std::iter::once(file).chain(&headers) {
            std::fs::read(source).map_err(|e| format!("{}: {e}", source.display()))?.hash(&mut hash);
        }
        let suffix = if self.shared { ".so" } else { "" };
        let out = dir().join(format!("{}-{:016x}{suffix}", self.source, hash.finish()));
        if out.exists() {
            return Ok(out);
        }
        let temporary = dir().join(format!("building-{}{suffix}", unique()));
        let mut cc = Command::new(self.compiler);
        cc.args(["-O1", "-g", "-o"]).arg(&temporary).args(&self.flags).arg(file);
        if self.fat > 0 {
            let (code, data) = (filler("code", self.fat, code), filler("data", self.fat, data));
            cc.arg(format!("-DFAT_CODE=\"{}\"", code.display()));
            cc.arg(format!("-DFAT_DATA=\"{}\"", data.display()));
        }
        for library in &self.linked {
            cc.arg(library).arg(format!("-Wl,-rpath,{}", dir().display()));
        }
        if self.shared {
            // Victims are linked with it by path, so its soname must not be the temporary name.
            cc.arg(format!("-Wl,-soname,{}", out.file_name().unwrap_or_default().display()));
        }
        cc.args(
            ["-pthread", "-lutil", "-lm"].iter().filter(|_| !self.flags.iter().any(|f| f == "-nostdlib")),
        );
        let made = cc.stdin(Stdio::null()).output().map_err(|e| format!("{cc:?}: {e}"))?;
        if !made.status.success() {
            return Err(format!("{cc:?}\n{}", String::from_utf8_lossy(&made.stderr)));
        }
        publish(&temporary, &out).map_err(|e| format!("{}: {e}", out.display()))?;
        Ok(out)
    }
}

/// Returns the directory in which victims are built.
fn dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("victims");
    std::fs::create_dir_all(&dir).expect("a directory for the victims");
    dir
}

/// Returns a file for `.incbin` with the generated code of a fat victim.
pub fn code_file(bytes: usize) -> PathBuf {
    filler("code", bytes, code)
}

/// Returns a file for `.incbin`, which is made only once.
fn filler(kind: &str, bytes: usize, make: impl Fn(u32) -> Vec<u8>) -> PathBuf {
    let path = dir().join(format!("{kind}-{bytes}.bin"));
    if !path.exists() {
        let mut all = Vec::with_capacity(bytes);
        (0u32..)
            .map(make)
            .take_while(|item| {
                all.extend(item);
                all.len() < bytes
            })
            .for_each(drop);
        let temporary = dir().join(format!("building-{}.bin", unique()));
        std::fs::write(&temporary, &all).expect("write the filler");
        publish(&temporary, &path).expect("rename the filler");
    }
    path
}

/// Gives a file its final name. Another test may make the same file. The first one is kept, because
/// a program may already run from it.
fn publish(temporary: &Path, path: &Path) -> std::io::Result<()> {
    let linked = std::fs::hard_link(temporary, path);
    std::fs::remove_file(temporary)?;
    match linked {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Computes what `fat_value` in fat.h computes.
pub fn value(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761).wrapping_add(12345)
}

fn data(i: u32) -> Vec<u8> {
    value(i).to_le_bytes().to_vec()
}

/// Returns the code of a 64-byte function that returns `value(i)`, padded with bytes that differ
/// everywhere.
fn code(i: u32) -> Vec<u8> {
    let n = value(i);
    let mut bytes = Vec::with_capacity(64);
    if cfg!(target_arch = "x86_64") {
        bytes.push(0xb8); // mov $n, %eax
        bytes.extend(n.to_le_bytes());
        bytes.push(0xc3); // ret
    } else {
        for word in [0x5280_0000 | (n & 0xffff) << 5, 0x72a0_0000 | (n >> 16) << 5, 0xd65f_03c0_u32] {
            bytes.extend(word.to_le_bytes()); // movz w0, #low; movk w0, #high, lsl 16; ret
        }
    }
    let mut noise = n | 1;
    while bytes.len() < 64 {
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        bytes.push((noise >> 8) as u8);
    }
    bytes
}

/// Returns a part of a file name that no other test uses.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Makes a directory that every user can reach, with copies of hugelift and of `files` in it.
pub fn open_dir(files: &[&Path]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), readable.clone()).expect("chmod");
    for file in files.iter().copied().chain([Path::new(super::HUGELIFT)]) {
        let copy = dir.path().join(file.file_name().expect("a file name"));
        super::cache::copy(file, &copy);
        std::fs::set_permissions(&copy, readable.clone()).expect("chmod");
    }
    dir
}

/// Runs a command for the set-up of a test, such as a compiler, which must succeed. Returns its
/// output.
pub fn must(command: &mut Command) -> String {
    let start = std::time::Instant::now();
    let out = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(start.elapsed() < 3 * PATIENCE, "{command:?} took {:?}", start.elapsed());
    String::from_utf8_lossy(&out.stdout).into_owned()
}
