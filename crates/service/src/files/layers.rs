// SPDX-License-Identifier: Apache-2.0
//! The files of containers, found in the layers of their images.
//!
//! A process in a container shows the paths of an overlay that lead nowhere here. The file lies in a layer, which has a path
//! here: the page cache is the layer's, so all containers of an image share it, and it stays when they have ended.
//!
//! Which folders are layers is taken from the own list of mounts alone, which root has made: a user can mount an overlay too, in
//! a namespace of his own, and call any folder a layer.

use super::place::is_kept;
use hugelift_core::maps::Mapping;
use hugelift_core::overlay::{Overlay, layers, parse};
use std::cell::OnceCell;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// With `xino` an overlay puts the number of the layer's file system into the upper bits of an inode number
/// (Documentation/filesystems/overlayfs.rst).
const OWN_BITS: u64 = (1 << 56) - 1;
/// The bytes of the list of mounts at most.
const MOST: u64 = 16 << 20;

/// The overlays that are mounted here.
#[derive(Debug, Default)]
pub struct Layers {
    overlays: OnceCell<Vec<Overlay>>,
}

impl Layers {
    /// Returns the path of a mapped file in its layer; `None` if it is in none, or another user can replace it there. `meta` is
    /// what stat(2) says of the mapped file. The mounts are read at the first call.
    pub fn find(&self, mapping: &Mapping, meta: &Metadata) -> Option<PathBuf> {
        let overlays = self.overlays.get_or_init(read);
        let device = (mapping.file.major, mapping.file.minor);
        let inside = inside(&mapping.path)?;
        let found = |layer: PathBuf| {
            // Podman names layers by links of its own.
            let layer = layer.canonicalize().ok()?;
            let path = layer.join(&inside);
            (leads_through_no_link(&layer, &inside) && is_kept(&path) && is_it(&path, meta)).then_some(path)
        };
        layers(overlays, device).into_iter().find_map(found)
    }
}

fn read() -> Vec<Overlay> {
    let mut text = Vec::new();
    let file = File::open("/proc/self/mountinfo");
    let done = file.and_then(|file| file.take(MOST).read_to_end(&mut text));
    done.map_or_else(|_| Vec::new(), |_| parse(&text))
}

/// Returns a path without its root; `None` if it is not as the kernel shows paths.
fn inside(path: &Path) -> Option<PathBuf> {
    let inside = path.strip_prefix("/").ok()?;
    inside.components().all(|part| matches!(part, Component::Normal(_))).then(|| inside.to_path_buf())
}

/// Returns whether neither a folder below a layer nor the file is a symbolic link. A link of an image would lead to a file of the
/// machine here.
fn leads_through_no_link(layer: &Path, inside: &Path) -> bool {
    let mut path = layer.to_path_buf();
    inside.components().all(|part| {
        path.push(part);
        std::fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_symlink())
    })
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
    use hugelift_linux::proc::procfs::Process;
    use std::process::{Child, Command, Stdio};

    /// An overlay that is mounted here, as the runtimes of containers do it, and processes that have files of it mapped.
    struct Mounted {
        dir: tempfile::TempDir,
        users: Vec<Child>,
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            for mut user in self.users.drain(..) {
                drop(user.stdin.take());
                let _ = user.wait();
            }
            let _ = Command::new("umount").arg(self.at("merged")).status();
        }
    }

    const MAP: &str = "import mmap,sys\nf=open(sys.argv[1])\nm=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n\
                       print('ready',flush=True)\nsys.stdin.read()";

    impl Mounted {
        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// Makes the folders, and runs `mount` with the options behind it. The last word is the folder.
        fn new() -> Mounted {
            let mounted = Mounted { dir: tempfile::tempdir().expect("a folder"), users: Vec::new() };
            for folder in ["one/sub", "two/sub", "upper", "work", "merged"] {
                std::fs::create_dir_all(mounted.at(folder)).expect("folders");
            }
            mounted
        }

        fn options(&self) -> String {
            let long = |name: &str| self.at(name).into_os_string().into_string().expect("text");
            let [one, two, upper, work] = ["one", "two", "upper", "work"].map(long);
            format!("lowerdir={one}:{two},upperdir={upper},workdir={work}")
        }

        fn mount(&self) -> bool {
            let mut mount = Command::new("mount");
            mount.args(["-t", "overlay", "overlay", "-o", &self.options()]).arg(self.at("merged"));
            mount.status().is_ok_and(|status| status.success())
        }

        /// Starts a process in a root directory of its own that has a file of the overlay mapped, and returns where it is found.
        fn found(&mut self, before: &[&str], path: &str) -> Option<PathBuf> {
            let words = [before, &["python3", "-c", MAP]].concat();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg(self.at("merged").join(path));
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
            self.users.push(child);
            let user = self.users.last_mut().expect("it");
            let mut line = String::new();
            let out = user.stdout.take().expect("piped");
            std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("read");
            assert_eq!(line, "ready\n");
            let process = Process::new(user.id()).with_memory();
            let mut mapping =
                process.maps().expect("maps").into_iter().find(|mapping| mapping.path.ends_with(path));
            let mapping = mapping.as_mut().expect("a mapping");
            let meta = MappedFiles::of(process).find(mapping).expect("its file").meta;
            // In a container the overlay is the root directory.
            mapping.path = Path::new("/").join(path);
            Layers::default().find(mapping, &meta)
        }
    }

    #[test]
    fn issue_33_7_a_file_of_an_overlay_is_found_in_its_layer() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let mut mounted = Mounted::new();
        let write = |path: PathBuf, size| std::fs::write(path, vec![1; size]).expect("write");
        for (file, size) in [("one/sub/a", 3 << 20), ("two/sub/a", 4 << 20), ("two/sub/b", 5 << 20)] {
            write(mounted.at(file), size);
        }
        // In an overlay a folder hides a link below it.
        std::os::unix::fs::symlink("sub", mounted.at("two/link")).expect("a link");
        if !mounted.mount() {
            eprintln!("SKIP: no overlay can be mounted here");
            return;
        }
        assert_eq!(
            mounted.found(&[], "sub/a"),
            Some(mounted.at("one/sub/a")),
            "it hides that of the lower layer"
        );
        assert_eq!(mounted.found(&[], "sub/b"), Some(mounted.at("two/sub/b")));
        write(mounted.at("merged/sub/c"), 6 << 20);
        assert_eq!(mounted.found(&[], "sub/c"), None, "the container can put a link there");
        assert!(leads_through_no_link(&mounted.at("two"), Path::new("sub/b")));
        assert!(!leads_through_no_link(&mounted.at("two"), Path::new("link/b")));
        let shown = std::fs::metadata(mounted.at("merged/sub/b")).expect("stat");
        assert!(is_it(&mounted.at("two/sub/b"), &shown));
        std::fs::rename(mounted.at("two/sub/b"), mounted.at("two/sub/old")).expect("mv");
        write(mounted.at("two/sub/b"), 5 << 20);
        assert!(!is_it(&mounted.at("two/sub/b"), &shown), "another file has its path");
    }

    #[test]
    fn issue_33_7_an_overlay_of_another_namespace_names_no_layers() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let mut mounted = Mounted::new();
        std::fs::write(mounted.at("one/sub/a"), vec![1; 3 << 20]).expect("write");
        if !mounted.mount() {
            eprintln!("SKIP: no overlay can be mounted here");
            return;
        }
        let merged = mounted.at("merged");
        assert!(Command::new("umount").arg(&merged).status().is_ok_and(|status| status.success()));
        let script = format!(
            "mount -t overlay overlay -o '{}' '{}' && exec \"$@\"",
            mounted.options(),
            merged.to_str().expect("text")
        );
        assert_eq!(mounted.found(&["unshare", "--mount", "sh", "-c", &script, "sh"], "sub/a"), None);
    }
}
