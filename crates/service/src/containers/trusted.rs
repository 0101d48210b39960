// SPDX-License-Identifier: Apache-2.0
//! Reads a file that nobody but root, or the own user, can change. What is read is bounded, and nothing waits.

use hugelift_linux::io::entry::Entry;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// There is none, it cannot be read, it is larger, or others can change it or a folder on the way to it.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let entry = Entry::find(path)?;
    let (file, meta) = entry.open()?;
    if !entry.is_changed_by_trusted_alone(meta.uid(), meta.mode()) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others than root can change it"));
    }
    if meta.len() > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    Ok(bytes)
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    #[test]
    fn issue_33_3_only_what_nobody_else_can_change_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").expect("write");
        assert_eq!(read(&at("file"), 4).expect("it"), b"text");
        assert_eq!(read(&at("file"), 3).map(|_| ()).expect_err("large").kind(), io::ErrorKind::FileTooLarge);
        symlink("file", at("link")).expect("a link");
        assert!(read(&at("link"), 4).is_ok(), "the link is root's too");
        fs::create_dir(at("open")).expect("a folder");
        fs::write(at("open/file"), "text").expect("write");
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(read(&at("open/file"), 4).is_err());
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o666)).expect("chmod");
        assert!(read(&at("file"), 4).is_err());
        assert!(read(&at("nothing"), 4).is_err() && read(dir.path(), 1 << 20).is_err());
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert!(read(&at("fifo"), 4).is_err(), "it would wait for a writer");
    }

    #[test]
    fn issue_33_3_a_large_file_and_one_of_another_user_are_not_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let large = dir.path().join("large");
        fs::File::create(&large).and_then(|file| file.set_len(100 << 20)).expect("a file");
        assert_eq!(read(&large, 4 << 20).map(|_| ()).expect_err("large").kind(), io::ErrorKind::FileTooLarge);
        if nix::unistd::geteuid().is_root() {
            let theirs = dir.path().join("theirs");
            fs::write(&theirs, "text").expect("write");
            chown(&theirs, Some(65534), None).expect("chown");
            assert!(read(&theirs, 4).is_err());
        }
    }
}
