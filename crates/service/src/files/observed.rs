// SPDX-License-Identifier: Apache-2.0
//! The files of the processes that the policy takes, remembered by their paths: a program that has ended will be started again,
//! and its files are primed when nobody uses them.
//!
//! Only files that nobody but root can put at their paths are remembered: they are opened by their paths later, and another user
//! could put a link there to a file that is none of his business, or that never answers.

use super::layers::Layers;
use super::place::is_kept;
use hugelift_core::maps::Mapping;
use hugelift_core::proc_stat::Identity;
use hugelift_core::record::is_entry;
use hugelift_linux::io::open;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::pagecache::prime::CacheFile;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most paths that are remembered, of all processes and of one process.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 64;
/// How long a path is remembered after it was last seen.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long after a reading the mappings of a process are read again.
const AGAIN: Duration = Duration::from_secs(60);
/// A mapping without a whole huge page gains nothing.
const LEAST: u64 = 2 << 20;

/// The files of the processes that the policy takes.
#[derive(Debug, Default)]
pub struct Observed {
    /// When each was last seen.
    paths: BTreeMap<PathBuf, Instant>,
    /// The processes whose mappings were read, by the time of the next reading.
    read: BTreeMap<Identity, Instant>,
}

impl Observed {
    /// Reads which files these processes have mapped, of each once a minute at most.
    pub fn see(&mut self, processes: &[Identity]) {
        let (now, layers) = (Instant::now(), Layers::default());
        self.read.retain(|process, _| processes.contains(process));
        for process in processes {
            if self.read.get(process).is_none_or(|again| *again <= now) {
                self.read.insert(*process, now + AGAIN);
                self.paths.extend(mapped(*process, &layers).into_iter().map(|path| (path, now)));
            }
        }
        self.paths.retain(|_, seen| now.duration_since(*seen) < REMEMBERED);
        let mut by_age: Vec<(Instant, PathBuf)> =
            self.paths.iter().map(|(path, at)| (*at, path.clone())).collect();
        by_age.sort_unstable();
        let surplus = by_age.len().saturating_sub(MOST);
        by_age.into_iter().take(surplus).for_each(|(_, path)| _ = self.paths.remove(&path));
    }

    /// Returns the paths.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.keys().map(PathBuf::as_path)
    }
}

/// Returns the paths of the files that a process has mapped, of which a mapping may hold a huge page. They lead to these
/// files here: in a container the paths of the process may lead to others.
fn mapped((pid, start): Identity, layers: &Layers) -> Vec<PathBuf> {
    let process = Process::new(pid).with_memory();
    let Ok(mappings) = process.maps() else { return Vec::new() };
    let files = MappedFiles::of(process);
    let mut known = HashSet::new();
    let is_file = |mapping: &Mapping| {
        mapping.is_file() && !mapping.deleted && mapping.path.has_root() && mapping.range.len() >= LEAST
    };
    let is_file = |mapping: &Mapping| is_file(mapping) && !is_of_store(&mapping.path);
    let mut found: Vec<PathBuf> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_file(mapping)) {
        if found.len() < MOST_OF_ONE && known.insert(mapping.file) {
            found.extend(place(&files, layers, mapping));
        }
    }
    // The id may be another process's since.
    let is_it = process.stat().is_ok_and(|stat| stat.start == start);
    if is_it { found } else { Vec::new() }
}

/// Returns a path that leads to the file of a mapping here, and that nobody but root can change: its own path, or the
/// path in a layer of an overlay.
fn place(files: &MappedFiles, layers: &Layers, mapping: &Mapping) -> Option<PathBuf> {
    let file = files.find(mapping).ok()?;
    match leads_to(&mapping.path, &file.meta) {
        true => Some(mapping.path.clone()),
        false => layers.find(mapping, &file.meta),
    }
}

/// Returns whether a path has the name of a copy in a store. A process that was lifted has mapped it; it is huge already, and
/// the store decides how long it is there.
fn is_of_store(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(is_entry)
}

/// Returns whether a path leads to this file here, and nobody but root can change that.
fn leads_to(path: &Path, file: &Metadata) -> bool {
    is_kept(path) && CacheFile::open(path).is_ok_and(|here| here.id() == open::id(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_2_the_files_of_a_process_are_remembered_when_it_has_ended() {
        let dir = tempfile::tempdir().expect("a folder");
        let (large, small) = (dir.path().join("large"), dir.path().join("small"));
        std::fs::write(&large, vec![1; 4 << 20]).expect("write");
        std::fs::write(&small, vec![1; 4096]).expect("write");
        let code = "import mmap,sys\nf=[open(a) for a in sys.argv[1:]]\n\
                    m=[mmap.mmap(a.fileno(),0,prot=mmap.PROT_READ) for a in f]\n\
                    print('ready',flush=True)\nsys.stdin.read()";
        let mut command = std::process::Command::new("python3");
        let piped = || std::process::Stdio::piped();
        let command = command.args(["-c", code]).arg(&large).arg(&small).stdin(piped()).stdout(piped());
        let mut child = command.spawn().expect("python3");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let stat = Process::new(child.id()).stat().expect("stat");
        let mut observed = Observed::default();
        // Its id with another start is another process.
        observed.see(&[(stat.pid, stat.start + 1)]);
        assert_eq!(observed.paths().count(), 0);
        observed.see(&[stat.identity()]);
        let has = |observed: &Observed, path: &Path| observed.paths().any(|known| known == path);
        assert!(has(&observed, &large) && !has(&observed, &small), "{observed:?}");
        drop(child.stdin.take());
        child.wait().expect("its end");
        observed.see(&[]);
        assert!(has(&observed, &large) && observed.read.is_empty());
    }

    #[test]
    fn issue_33_a_copy_in_a_store_is_not_remembered() {
        let hash = "c4bd5f4b6132cc7a04a719ec2410bc302e0f1732d025a4ddafe38b5bab75595d";
        assert!(is_of_store(&Path::new("/run/hugelift/store").join(hash)));
        assert!(!is_of_store(Path::new("/usr/sbin/mariadbd")) && !is_of_store(Path::new("/")));
    }
}
