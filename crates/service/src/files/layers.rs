// SPDX-License-Identifier: Apache-2.0
//! The files of containers, found in the layers of their images.
//!
//! A process in a container shows the paths of an overlay that lead nowhere here. The file lies in a layer, which has a path
//! here: the page cache is the layer's, so all containers of an image share it, and it stays when they have ended.

use super::place::is_kept;
use hugelift_core::maps::Mapping;
use hugelift_core::overlay::{Overlay, parse, places};
use hugelift_linux::io::entry::Entry;
use hugelift_linux::proc::procfs::Process;
use std::cell::OnceCell;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// With `xino` an overlay puts the number of the layer's file system into the upper bits of an inode number
/// (Documentation/filesystems/overlayfs.rst).
const OWN_BITS: u64 = (1 << 56) - 1;

/// The overlays that a process sees.
#[derive(Debug)]
pub struct Layers {
    process: Process,
    overlays: OnceCell<Vec<Overlay>>,
}

impl Layers {
    /// Names them. They are read when the first file is asked for.
    pub fn of(process: Process) -> Layers {
        Layers { process, overlays: OnceCell::new() }
    }

    /// Returns the path of a mapped file in its layer; `None` if it is in none, or another user can replace it there. `meta` is
    /// what stat(2) says of the mapped file.
    pub fn find(&self, mapping: &Mapping, meta: &Metadata) -> Option<PathBuf> {
        let overlays =
            self.overlays.get_or_init(|| parse(&self.process.read("mountinfo").unwrap_or_default()));
        let device = (mapping.file.major, mapping.file.minor);
        let mut places = places(overlays, device, &mapping.path).into_iter();
        let path = places.find(|path| is_kept(path) && is_it(path, meta))?;
        // Podman and Docker name layers by links. Without them each file has one path.
        Entry::find(&path).ok().map(|entry| entry.path())
    }
}

/// Returns whether the file at `path` is the one in the layer that the overlay shows as `shown`.
fn is_it(path: &Path, shown: &Metadata) -> bool {
    let state = |meta: &Metadata| (meta.size(), meta.mtime(), meta.mtime_nsec());
    let is_same = |here: Metadata| {
        here.is_file() && state(&here) == state(shown) && here.ino() & OWN_BITS == shown.ino() & OWN_BITS
    };
    std::fs::symlink_metadata(path).is_ok_and(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_linux::proc::mapped::MappedFiles;
    use std::process::{Child, Command, Stdio};

    /// A process that maps a file of an overlay, in a mount namespace of its own.
    struct Inside(Child);

    impl Drop for Inside {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    /// Starts a process that has `merged/PATH` mapped; `None` if this machine has no overlays.
    fn start(dir: &Path, options: &str, path: &str) -> Option<Inside> {
        let script = "mount -t overlay overlay -o \"$1\" merged && exec python3 -c '\
            import mmap,sys\nf=open(sys.argv[1])\nm=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n\
            print(\"ready\",flush=True)\nsys.stdin.read()' \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", options]).arg(dir.join("merged").join(path));
        let child = command.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut inside = Inside(child);
        let mut line = String::new();
        let out = inside.0.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("read");
        (line == "ready\n").then_some(inside)
    }

    /// Returns where the file of this size is that the process has mapped.
    fn found(inside: &Inside, size: u64) -> Option<PathBuf> {
        let process = Process::new(inside.0.id()).with_memory();
        let mappings = process.maps().expect("maps");
        let large = |mapping: &&Mapping| mapping.range.len() == size && mapping.is_file();
        let mapping = mappings.iter().find(large).expect("a mapping");
        let meta = MappedFiles::of(process).find(mapping).expect("its file").meta;
        Layers::of(process).find(mapping, &meta)
    }

    #[test]
    fn issue_33_7_a_file_of_an_overlay_is_found_in_its_layer() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        for folder in ["one/sub", "two/sub", "upper", "work", "merged"] {
            std::fs::create_dir_all(at(folder)).expect("folders");
        }
        for (file, size) in [("one/sub/a", 3 << 20), ("two/sub/a", 4 << 20), ("two/sub/b", 5 << 20)] {
            std::fs::write(at(file), vec![1; size]).expect("write");
        }
        let long = |name: &str| at(name).into_os_string().into_string().expect("text");
        let upper = format!("upperdir={},workdir={}", long("upper"), long("work"));
        std::os::unix::fs::symlink("two", at("link")).expect("a link");
        let options = format!("lowerdir={}:{},{upper}", long("one"), long("link"));
        let Some(a) = start(dir.path(), &options, "sub/a") else {
            eprintln!("SKIP: no overlay can be mounted here");
            return;
        };
        assert_eq!(found(&a, 3 << 20), Some(at("one/sub/a")), "it hides that of the lower layer");
        let b = start(dir.path(), &options, "sub/b").expect("a second one");
        assert_eq!(found(&b, 5 << 20), Some(at("two/sub/b")));
        std::fs::rename(at("two/sub/b"), at("two/sub/old")).expect("mv");
        std::fs::write(at("two/sub/b"), vec![2; 5 << 20]).expect("write");
        assert_eq!(found(&b, 5 << 20), None, "another file has its path");
    }
}
