// SPDX-License-Identifier: Apache-2.0
//! Which shared objects a program needs, found as its loader finds them (ld.so(8)), without running
//! anything.

use crate::elf::elf_file::ElfFile;
use crate::io::read::read_whole;
use hugelift_core::elf::{Dynamic, Machine};
use hugelift_core::ldcache;
use hugelift_core::maps::FileId;
use hugelift_core::printable::Untrusted;
use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A program and the objects that are loaded with it.
#[derive(Debug)]
pub struct Program {
    /// The executable, then the objects in the order in which the loader finds them.
    pub files: Vec<ElfFile>,
    /// Names for which no file was found.
    pub missing: Vec<Untrusted>,
}

const LD_CACHE: &str = "/etc/ld.so.cache";

/// More objects than any program needs: a limit for files that were made to need endlessly many.
const MAX_OBJECTS: usize = 4096;

/// Finds what `executable` needs. `LD_LIBRARY_PATH` is the caller's; `LD_PRELOAD` is left out.
pub fn needed(executable: ElfFile) -> Program {
    let interp = executable.interp();
    let mut search = Search::new(&executable, interp.as_deref());
    search.add(executable, None);
    if let Some(interp) = interp {
        match ElfFile::open(&interp) {
            // The loader needs nothing that it would have to load.
            Ok(loader) => {
                let index = search.add(loader, None);
                search.queue.retain(|&i| Some(i) != index);
            }
            Err(_) => search.missing.push(interp.into()),
        }
    }
    while let Some(index) = search.queue.pop_front() {
        search.load_needed_of(index);
    }
    let files = search.objects.into_iter().map(|o| o.file).collect();
    Program { files, missing: search.missing }
}

/// An object that was found.
struct Found {
    file: ElfFile,
    dynamic: Dynamic,
    /// The index of the object that needed it first.
    parent: Option<usize>,
    /// What `$ORIGIN` stands for in its names.
    origin: PathBuf,
    rpath: Vec<PathBuf>,
    runpath: Vec<PathBuf>,
}

struct Search {
    musl: bool,
    machine: Machine,
    library_path: Vec<PathBuf>,
    /// The file that ldconfig(8) writes; empty if there is none.
    cache: Vec<u8>,
    defaults: Vec<PathBuf>,
    objects: Vec<Found>,
    known_files: HashSet<FileId>,
    known_names: HashSet<OsString>,
    queue: VecDeque<usize>,
    missing: Vec<Untrusted>,
}

impl Search {
    fn new(executable: &ElfFile, interp: Option<&Path>) -> Search {
        let file_name = interp.and_then(Path::file_name).unwrap_or_default();
        let musl = file_name.as_bytes().starts_with(b"ld-musl-");
        let machine = executable.headers.machine;
        let library_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let origin = real_folder(&executable.path);
        Search {
            musl,
            machine,
            library_path: folders(&library_path, &origin, machine),
            cache: if musl { Vec::new() } else { read_whole(Path::new(LD_CACHE)).unwrap_or_default() },
            defaults: if musl { musl_folders(file_name) } else { glibc_folders(machine) },
            objects: Vec::new(),
            known_files: HashSet::new(),
            known_names: HashSet::new(),
            queue: VecDeque::new(),
            missing: Vec::new(),
        }
    }

    /// Adds an object and returns its index; `None` if it is there already.
    fn add(&mut self, file: ElfFile, parent: Option<usize>) -> Option<usize> {
        if !self.known_files.insert(file.id) || self.objects.len() >= MAX_OBJECTS {
            return None;
        }
        let dynamic = file.dynamic();
        // The loader learns the executable's real path from the kernel. For shared objects it takes the path
        // by which they were found, with its symbolic links.
        let origin = match self.objects.is_empty() {
            true => real_folder(&file.path),
            false => file.path.parent().unwrap_or(Path::new("/")).to_path_buf(),
        };
        let list = |index: Option<u64>| {
            let text = index.and_then(|i| file.string(&dynamic, i)).unwrap_or_default();
            folders(&text, &origin, self.machine)
        };
        let (rpath, runpath) = (list(dynamic.rpath), list(dynamic.runpath));
        // An object that needs it by its soname later gets this one.
        self.known_names.extend(dynamic.soname.and_then(|i| file.string(&dynamic, i)));
        self.objects.push(Found { file, dynamic, parent, origin, rpath, runpath });
        self.queue.push_back(self.objects.len() - 1);
        Some(self.objects.len() - 1)
    }

    fn load_needed_of(&mut self, index: usize) {
        let object = &self.objects[index];
        let names: Vec<OsString> =
            object.dynamic.needed.iter().filter_map(|&n| object.file.string(&object.dynamic, n)).collect();
        for name in names {
            if self.is_loader_of_musl(&name) || !self.known_names.insert(name.clone()) {
                continue;
            }
            match self.find(&name, index) {
                Some(file) => {
                    self.add(file, Some(index));
                }
                None => self.missing.push(name.into()),
            }
        }
    }

    /// Returns whether `name` is musl's loader, which is its C library too, under each of these names.
    fn is_loader_of_musl(&self, name: &OsStr) -> bool {
        const PARTS: [&str; 7] = ["c", "pthread", "rt", "m", "dl", "util", "xnet"];
        let part = name.to_str().and_then(|n| n.strip_prefix("lib")).and_then(|n| n.split('.').next());
        self.musl && part.is_some_and(|p| PARTS.contains(&p))
    }

    /// Returns the file that the loader takes for `name` when object `index` needs it.
    fn find(&self, name: &OsStr, index: usize) -> Option<ElfFile> {
        let try_open = |path: &Path| {
            let file = ElfFile::open(path).ok()?;
            (file.headers.machine == self.machine && file.headers.relocatable).then_some(file)
        };
        let object = &self.objects[index];
        if name.as_bytes().contains(&b'/') {
            return expand(name, &object.origin, self.machine).iter().find_map(|path| try_open(path));
        }
        let in_folders = |folders: &[PathBuf]| {
            let levels = if self.musl { &[][..] } else { hwcaps() };
            folders.iter().find_map(|folder| {
                let better = levels.iter().map(|l| folder.join("glibc-hwcaps").join(l).join(name));
                better.chain([folder.join(name)]).find_map(|path| try_open(&path))
            })
        };
        let in_cache = || cached(&self.cache, name, self.machine).iter().find_map(|path| try_open(path));
        if self.musl {
            // musl treats RPATH and RUNPATH alike: both are inherited.
            return in_folders(&self.library_path)
                .or_else(|| self.ancestors(index).find_map(|o| in_folders(o.search_path())))
                .or_else(|| in_folders(&self.defaults));
        }
        let by_rpath = || {
            let mut inherited = self.ancestors(index).filter(|o| o.runpath.is_empty());
            object.runpath.is_empty().then(|| inherited.find_map(|o| in_folders(&o.rpath))).flatten()
        };
        let by_default = || {
            let allowed = !object.dynamic.no_default_lib;
            allowed.then(|| in_cache().or_else(|| in_folders(&self.defaults))).flatten()
        };
        by_rpath()
            .or_else(|| in_folders(&self.library_path))
            .or_else(|| in_folders(&object.runpath))
            .or_else(by_default)
    }

    /// Returns the object, the object that needed it, and so on up to the executable.
    fn ancestors(&self, index: usize) -> impl Iterator<Item = &Found> {
        std::iter::successors(self.objects.get(index), |o| self.objects.get(o.parent?))
    }
}

impl Found {
    fn search_path(&self) -> &[PathBuf] {
        if self.runpath.is_empty() { &self.rpath } else { &self.runpath }
    }
}

/// Returns the folder of `path`, with links resolved.
fn real_folder(path: &Path) -> PathBuf {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real.parent().unwrap_or(Path::new("/")).to_path_buf()
}

/// Splits a list of folders as in `DT_RUNPATH` or `LD_LIBRARY_PATH`, with `origin` for `$ORIGIN`.
pub fn folders(list: &OsStr, origin: &Path, machine: Machine) -> Vec<PathBuf> {
    if list.is_empty() {
        return Vec::new();
    }
    let parts = list.as_bytes().split(|b| matches!(b, b':' | b';'));
    // An empty item is the current folder.
    let parts = parts.map(|p| if p.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(p) });
    parts.flat_map(|part| expand(part, origin, machine)).collect()
}

/// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`. What `$LIB` means was decided when the
/// loader was built, so every meaning in use is returned.
fn expand(text: &OsStr, origin: &Path, machine: Machine) -> Vec<PathBuf> {
    let origin = origin.as_os_str().as_bytes();
    let platform = triplet(machine).split('-').next().unwrap_or_default();
    let libs = [format!("lib/{}", triplet(machine)), "lib64".to_string(), "lib".to_string()];
    let with_lib = |lib: &str| {
        let mut out = text.as_bytes().to_vec();
        for (name, value) in [("ORIGIN", origin), ("LIB", lib.as_bytes()), ("PLATFORM", platform.as_bytes())]
        {
            out = replace(&out, format!("${{{name}}}").as_bytes(), value, |_| true);
            // A name without braces ends where the word ends.
            let ends = |next: Option<&u8>| next.is_none_or(|b| !(b.is_ascii_alphanumeric() || *b == b'_'));
            out = replace(&out, format!("${name}").as_bytes(), value, ends);
        }
        PathBuf::from(OsString::from_vec(out))
    };
    let mut all: Vec<PathBuf> = libs.iter().map(|lib| with_lib(lib)).collect();
    all.dedup();
    all
}

/// Replaces every `what` by `by` if `ends` accepts the byte behind it.
fn replace(text: &[u8], what: &[u8], by: &[u8], ends: impl Fn(Option<&u8>) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(&first) = rest.first() {
        match rest.strip_prefix(what).filter(|tail| ends(tail.first())) {
            Some(tail) => {
                out.extend(by);
                rest = tail;
            }
            None => {
                out.push(first);
                rest = &rest[1..];
            }
        }
    }
    out
}

/// Returns the name of a machine in Debian's folders.
fn triplet(machine: Machine) -> &'static str {
    match machine {
        Machine::AArch64 => "aarch64-linux-gnu",
        Machine::X86_64 | Machine::Other(_) => "x86_64-linux-gnu",
    }
}

fn glibc_folders(machine: Machine) -> Vec<PathBuf> {
    let triplet = triplet(machine);
    let multiarch = [format!("/lib/{triplet}"), format!("/usr/lib/{triplet}")];
    let plain = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(String::from);
    multiarch.into_iter().chain(plain).map(PathBuf::from).collect()
}

/// Reads `/etc/ld-musl-ARCH.path`, with one folder on each line or between colons; without that file,
/// returns musl's own list.
fn musl_folders(loader: &OsStr) -> Vec<PathBuf> {
    let own = loader.as_bytes().strip_suffix(b".so.1").unwrap_or(loader.as_bytes());
    let list = [own, b".path"].concat();
    let text = read_whole(&Path::new("/etc").join(OsStr::from_bytes(&list))).unwrap_or_default();
    let text = if text.is_empty() { b"/lib:/usr/local/lib:/usr/lib".to_vec() } else { text };
    let parts = text.split(|b| matches!(b, b':' | b'\n')).filter(|p| !p.is_empty());
    parts.map(|p| PathBuf::from(OsStr::from_bytes(p))).collect()
}

/// Returns the paths that the cache has for `name`, best first.
fn cached(cache: &[u8], name: &OsStr, machine: Machine) -> Vec<PathBuf> {
    let flags = match machine {
        Machine::X86_64 => ldcache::X86_64,
        Machine::AArch64 => ldcache::AARCH64,
        Machine::Other(_) => return Vec::new(),
    };
    let found = ldcache::lookup(cache, name.as_bytes(), flags).unwrap_or_default();
    let mut paths: Vec<&Path> = found.into_iter().map(|path| Path::new(OsStr::from_bytes(path))).collect();
    paths.retain(|path| rank(path).is_some());
    paths.sort_by_key(|path| rank(path));
    paths.into_iter().map(Path::to_path_buf).collect()
}

/// Returns the rank of a path of the cache, 0 for those of this CPU's best level; `None` if it is for another
/// CPU.
fn rank(path: &Path) -> Option<usize> {
    let mut parts = path.iter().skip_while(|p| *p != "glibc-hwcaps");
    match parts.nth(1) {
        None => Some(usize::MAX),
        Some(level) => hwcaps().iter().position(|l| *l == level),
    }
}

/// Returns the `glibc-hwcaps` folders that this CPU may use, best first.
fn hwcaps() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let v2 = has!("sse4.2") && has!("ssse3") && has!("popcnt") && has!("cmpxchg16b");
        let v3 = v2 && has!("avx2") && has!("bmi1") && has!("bmi2") && has!("fma") && has!("lzcnt");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd");
        let v4 = v4 && has!("avx512dq") && has!("avx512vl");
        match (v4, v3, v2) {
            (true, _, _) => &["x86-64-v4", "x86-64-v3", "x86-64-v2"],
            (_, true, _) => &["x86-64-v3", "x86-64-v2"],
            (_, _, true) => &["x86-64-v2"],
            _ => &[],
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_path_are_replaced() {
        let all = |text: &str| expand(OsStr::new(text), Path::new("/opt/x"), Machine::X86_64);
        assert_eq!(all("$ORIGIN/../lib"), [Path::new("/opt/x/../lib")]);
        assert_eq!(all("${ORIGIN}a:$ORIGINS"), [Path::new("/opt/xa:$ORIGINS")]);
        assert_eq!(all("/a/$PLATFORM"), [Path::new("/a/x86_64")]);
        let libs = ["/lib/x86_64-linux-gnu", "/lib64", "/lib"].map(PathBuf::from);
        assert_eq!(all("/$LIB"), libs);
        let list = folders(OsStr::new("/a::$ORIGIN;/b"), Path::new("/o"), Machine::AArch64);
        assert_eq!(list, ["/a", ".", "/o", "/b"].map(PathBuf::from));
    }

    #[test]
    fn own_objects_are_those_that_the_loader_took() {
        let own = ElfFile::open(&std::env::current_exe().unwrap()).unwrap();
        let found = needed(own);
        assert!(found.missing.is_empty(), "{:?}", found.missing);
        let mut paths: Vec<PathBuf> =
            found.files.iter().map(|f| std::fs::canonicalize(&f.path).unwrap()).collect();
        let snapshot = crate::proc::snapshot::live(None, 0).unwrap();
        let mut live: Vec<PathBuf> = snapshot.objects.into_iter().map(|o| o.path).collect();
        paths.sort();
        live.sort();
        assert_eq!(paths, live);
    }

    #[test]
    fn a_cached_path_for_another_cpu_is_none() {
        assert_eq!(rank(Path::new("/lib/libc.so.6")), Some(usize::MAX));
        assert_eq!(rank(Path::new("/lib/glibc-hwcaps/power10/libc.so.6")), None);
    }
}
