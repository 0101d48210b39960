// SPDX-License-Identifier: Apache-2.0
//! /proc, /sys and /etc of this machine, or of a recorded one below some folder.

use crate::io::read::read_text;
use hugelift_core::printable::Escape;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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

    /// Returns where the absolute `path` is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match &self.root {
            None => path.to_path_buf(),
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    /// Reads a text file; returns `None` if there is none, it cannot be read, or it is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read_text(&self.path(path))
    }

    /// Returns the names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Writes `value` to a setting that exists.
    ///
    /// # Errors
    /// open(2) or write(2).
    pub fn set(&self, path: impl AsRef<Path>, value: &str) -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(self.path(path))?;
        // One write(2): the kernel takes each as a value of its own.
        file.write_all(format!("{value}\n").as_bytes())
    }

    /// Replaces a file by one with `text`, wholly or not at all; makes its folder.
    ///
    /// # Errors
    /// The call that failed; the file is then as it was.
    pub fn replace(&self, path: impl AsRef<Path>, text: &str) -> io::Result<()> {
        let path = self.path(path);
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder)?;
        let name = path.file_name().unwrap_or_default().escaped();
        // A name that no reader of *.conf matches.
        let new = folder.join(format!(".{name}.{}.new", std::process::id()));
        let write = || {
            // A file that an earlier process with our id has left, or that another user has put there, is
            // not written to: it may be a link.
            let _ = std::fs::remove_file(&new);
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(folder)?.sync_all()
        };
        write().inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
    }
}
