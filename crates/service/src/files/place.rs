// SPDX-License-Identifier: Apache-2.0
//! Whether a path is one whose file may be kept: it is opened by its path later, and nobody else may put another one there.

use hugelift_linux::io::entry::{Entry, is_trusted};
use std::path::Path;

/// The largest file: of a file each huge page is counted, whether it is there or a hole.
const LARGEST: u64 = 1 << 40;

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
