// SPDX-License-Identifier: Apache-2.0
//! /proc, /sys and /etc of this machine, or of a recorded one below some folder.

use crate::io::entry::Entry;
use crate::io::read::read_text;
use crate::io::temporary::Temporary;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

/// As many symbolic links as the kernel follows (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// Where absolute paths are looked up.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    root: Option<PathBuf>,
}

impl Tree {
    /// Returns the machine itself, or what is recorded below `root`.
    pub fn new(root: Option<PathBuf>) -> Tree {
        Tree { root }
    }

    /// Returns whether it is the machine itself.
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    /// Returns where the absolute `path` is. Below a root its folders are followed as chroot(2) does: what is a link there leads to
    /// a folder below the root. The last name may be a link.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.find(path.as_ref(), false)
    }

    /// Returns where a path is, below a root also if its last name is a link.
    fn file(&self, path: impl AsRef<Path>) -> PathBuf {
        self.find(path.as_ref(), true)
    }

    fn find(&self, path: &Path, follows: bool) -> PathBuf {
        let Some(root) = &self.root else { return path.to_path_buf() };
        let mut left: VecDeque<OsString> = names_of(path);
        let (mut found, mut links) = (root.clone(), 0);
        while let Some(name) = left.pop_front() {
            if name == ".." {
                // The root is its own parent.
                if found != *root {
                    found.pop();
                }
                continue;
            }
            let next = found.join(&name);
            match std::fs::read_link(&next) {
                // No file has a NUL in its name: what is to be opened there is refused, and not followed by the kernel.
                Ok(_) if links == MAX_LINKS => return next.join("\0: too many symbolic links"),
                Ok(target) if follows || !left.is_empty() => {
                    links += 1;
                    if target.has_root() {
                        found.clone_from(root);
                    }
                    let mut all = names_of(&target);
                    all.append(&mut left);
                    left = all;
                }
                _ => found = next,
            }
        }
        found
    }

    /// Reads a text file; returns `None` if there is none, it cannot be read, or it is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read_text(&self.file(path))
    }

    /// Returns the names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.file(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// open(2)
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        File::open(self.file(path))
    }

    /// Writes `value` to a setting that exists.
    ///
    /// # Errors
    /// open(2) or write(2).
    pub fn set(&self, path: impl AsRef<Path>, value: &str) -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).open(self.file(path))?;
        // One write(2): the kernel takes each as a value of its own.
        let text = format!("{value}\n");
        file.write_all(text.as_bytes())?;
        // In an image it is an ordinary file, which no reader is to find empty.
        if self.is_live() { Ok(()) } else { file.set_len(text.len() as u64) }
    }

    /// Replaces a file by one with `text`, wholly or not at all; makes its folder.
    ///
    /// # Errors
    /// The call that failed; the file and its folder are then as they were.
    pub fn replace(&self, path: impl AsRef<Path>, text: &str) -> io::Result<()> {
        let path = self.path(path);
        let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            // A link of this name is replaced too: what it leads to is another file.
            let place = Entry::find_name(&path)?;
            let old = place.stat().ok().filter(|old| old.st_mode & libc::S_IFMT == libc::S_IFREG);
            let mode = old.map_or(0o644, |old| old.st_mode & 0o777);
            let new = Temporary::beside(&place, mode)?;
            new.file().write_all(text.as_bytes())?;
            new.publish(&place)
        };
        write().inspect_err(|_| {
            // The lowest one is the first.
            missing.iter().for_each(|folder| drop(std::fs::remove_dir(folder)));
        })
    }
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.into()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use nix::sys::stat::Mode;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_is_replaced_wholly_and_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Some(root.path().to_path_buf()));
        fs::create_dir_all(root.path().join("etc/d")).unwrap();
        let events = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        events
            .add_watch(&root.path().join("etc/d"), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVE)
            .unwrap();
        tree.replace("/etc/d/a.conf", "one").unwrap();
        let names: Vec<_> =
            events.read_events().unwrap().into_iter().filter_map(|event| event.name).collect();
        let is_nameless =
            nix::fcntl::open(root.path(), OFlag::O_TMPFILE | OFlag::O_RDWR, Mode::S_IRUSR).is_ok();
        // A file system without nameless files shows another name before.
        let is_last = names.last().is_some_and(|name| name == "a.conf");
        assert!(is_last && (names.len() == 1 || !is_nameless), "{names:?}");
        let file = root.path().join("etc/d/a.conf");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        tree.replace("/etc/d/a.conf", "two").unwrap();
        assert_eq!(tree.read("/etc/d/a.conf").as_deref(), Some("two"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(tree.names("/etc/d"), ["a.conf"]);
    }

    #[test]
    fn a_folder_that_was_made_for_nothing_goes() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(Some(root.path().to_path_buf()));
        // A name that is too long for a file, below folders that can be made.
        let long = format!("/etc/made/twice/{}", "x".repeat(300));
        fs::create_dir(root.path().join("etc")).unwrap();
        assert!(tree.replace(&long, "text").is_err());
        assert_eq!(tree.names("/etc"), [""; 0]);
    }

    /// What an image says is a link leads to a file of the image, whatever this machine has there.
    #[test]
    fn links_of_an_image_stay_in_it() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = Tree::new(Some(root.path().to_path_buf()));
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(outside.path().join("secret"), "of the host").unwrap();
        symlink(outside.path(), etc.join("d")).unwrap();
        symlink(outside.path().join("secret"), etc.join("file")).unwrap();
        symlink("../../../../real", etc.join("up")).unwrap();
        symlink("round", etc.join("round")).unwrap();
        assert_eq!((tree.read("/etc/d/secret"), tree.read("/etc/file")), (None, None));
        tree.replace("/etc/d/new", "text").unwrap();
        tree.replace("/etc/up/new", "text").unwrap();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert!(root.path().join("real/new").exists());
        assert_eq!(tree.read("/etc/d/new").as_deref(), Some("text"));
        assert!(tree.replace("/etc/round/new", "text").is_err());
        assert!(tree.set("/etc/file", "1").is_err());
        // A link of the last name is replaced, and not what it leads to, here or there.
        fs::create_dir_all(root.path().join(outside.path().strip_prefix("/").unwrap())).unwrap();
        tree.replace("/etc/file", "new").unwrap();
        assert!(fs::symlink_metadata(etc.join("file")).unwrap().is_file());
        assert_eq!(fs::metadata(etc.join("file")).unwrap().permissions().mode() & 0o111, 0);
        // One link more than are followed, of which the last leads outside.
        for n in 0..MAX_LINKS {
            symlink(format!("chain{}", n + 1), etc.join(format!("chain{n}"))).unwrap();
        }
        symlink(outside.path(), etc.join(format!("chain{MAX_LINKS}"))).unwrap();
        assert_eq!(tree.read("/etc/chain0/secret"), None);
        assert!(
            tree.set("/etc/chain0/secret", "1").is_err() && tree.replace("/etc/chain0/new", "text").is_err()
        );
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "of the host");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}
