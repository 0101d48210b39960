// SPDX-License-Identifier: Apache-2.0
//! The files of the processes that the policy takes, remembered by their paths: a program that has ended will be started again,
//! and its files are primed when nobody uses them.
//!
//! Only files that nobody but root can put at their paths are remembered: they are opened by their paths later, and another user
//! could put a link there to a file that is none of his business, or that never answers.

use super::file::KeptFile;
use hugelift_core::maps::Mapping;
use hugelift_core::proc_stat::Identity;
use hugelift_linux::io::entry::{Entry, is_trusted};
use hugelift_linux::io::open;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::procfs::Process;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most paths that are remembered, and those of one process.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 64;
/// How long a path is remembered after it was last seen.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long after a reading the mappings of a process are read again.
const AGAIN: Duration = Duration::from_secs(60);
/// A mapping without a whole huge page gains nothing.
const LEAST: u64 = 2 << 20;
/// The largest file: of a file each huge page is counted, whether it is there or a hole.
const LARGEST: u64 = 1 << 40;

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
        let now = Instant::now();
        self.read.retain(|process, _| processes.contains(process));
        for process in processes {
            if self.read.get(process).is_none_or(|again| *again <= now) {
                self.read.insert(*process, now + AGAIN);
                self.paths.extend(mapped(*process).into_iter().map(|path| (path, now)));
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

/// Returns the paths of the files that a process has mapped, of which a mapping may hold a huge page, and to which these paths
/// lead here: in a container they may lead to others.
fn mapped((pid, start): Identity) -> Vec<PathBuf> {
    let process = Process::new(pid).with_memory();
    let Ok(mappings) = process.maps() else { return Vec::new() };
    let files = MappedFiles::of(process);
    let mut known = HashSet::new();
    let is_file = |mapping: &Mapping| {
        mapping.is_file() && !mapping.deleted && mapping.path.has_root() && mapping.range.len() >= LEAST
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_file(mapping)) {
        if found.len() < MOST_OF_ONE && known.insert(mapping.file) && leads_to(&files, mapping) {
            found.push(mapping.path.clone());
        }
    }
    // The id may be another process's since.
    let is_it = process.stat().is_ok_and(|stat| stat.start == start);
    if is_it { found } else { Vec::new() }
}

/// Returns whether the path of a mapping leads to its file here, and nobody but root can change that.
fn leads_to(files: &MappedFiles, mapping: &Mapping) -> bool {
    let Ok(file) = files.find(mapping) else { return false };
    is_kept(&mapping.path)
        && KeptFile::open(&mapping.path).is_ok_and(|here| here.id() == open::id(&file.meta))
}

/// Returns whether a file of root's or of the own user's is at this path, and nobody else can put another there. What is larger
/// than [`LARGEST`] or has mostly holes is left out.
pub fn is_kept(path: &Path) -> bool {
    let Ok(entry) = Entry::find(path) else { return false };
    let Ok(stat) = entry.stat() else { return false };
    let (len, there) = (stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned().saturating_mul(512));
    entry.exposed().is_none() && is_trusted(stat.st_uid) && len <= LARGEST && there >= len / 2
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
    fn issue_33_2_files_that_others_can_replace_are_not_remembered() {
        use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("open")).expect("a folder");
        for path in [at("ours"), at("open/file")] {
            std::fs::write(path, vec![1; 4 << 20]).expect("write");
        }
        assert!(is_kept(&at("ours")) && is_kept(&at("open/file")));
        std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(!is_kept(&at("open/file")), "anybody can put another file there");
        symlink(at("open/file"), at("link")).expect("a link");
        assert!(!is_kept(&at("link")));
        assert!(!is_kept(&at("nothing")));
        // Of 64 GB there are 4 MB.
        let sparse = std::fs::File::options().write(true).open(at("ours")).expect("open");
        sparse.set_len(64 << 30).expect("ftruncate");
        assert!(!is_kept(&at("ours")));
        if nix::unistd::geteuid().is_root() {
            std::fs::write(at("theirs"), vec![1; 4 << 20]).expect("write");
            chown(at("theirs"), Some(65534), None).expect("chown");
            assert!(!is_kept(&at("theirs")), "its owner can put a link there");
        }
    }
}
