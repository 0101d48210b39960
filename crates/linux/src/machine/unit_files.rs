// SPDX-License-Identifier: Apache-2.0
//! Where the file of a systemd unit and its drop-ins are (systemd.unit(5), "Unit File Load Path").

use super::tree::Tree;
use hugelift_core::printable::Escape;
use hugelift_core::units::name::{drop_in_names, template};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the system's manager. A file in one of them hides files of the same name in later ones.
const FOLDERS: [&str; 13] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];
/// The folder of the machine's administrator.
pub const OWN: &str = "/etc/systemd/system";
/// More links than this are a circle.
const MOST_LINKS: usize = 16;

/// The files of a unit. All paths are as in the machine's root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitFiles {
    /// The unit's own name, which differs from an alias.
    pub name: String,
    /// The unit file.
    pub file: PathBuf,
    /// Its drop-ins by their file names, in the order in which systemd reads them.
    pub drop_ins: BTreeMap<String, PathBuf>,
}

/// Finds the files of a service by its whole name or by an alias.
///
/// # Errors
/// There is no such unit, or it is masked.
pub fn find(tree: &Tree, name: &str) -> Result<UnitFiles, String> {
    let mut name = name.to_string();
    let mut file = file_of(tree, &name).ok_or_else(|| format!("there is no unit {name}"))?;
    for _ in 0..MOST_LINKS {
        let Some(target) = target_of(tree, &file) else {
            let drop_ins = drop_ins(tree, &name);
            return Ok(UnitFiles { name, file, drop_ins });
        };
        if target == Path::new("/dev/null") {
            return Err(format!("{name} is masked: {} is a link to /dev/null", file.escaped()));
        }
        let of = target.file_name().and_then(|of| of.to_str()).unwrap_or_default();
        // A link from an instance to its template is no alias.
        if of.ends_with(".service") && of != name && Some(of) != template(&name).as_deref() {
            name = of.to_string();
        }
        file = target;
    }
    Err(format!("the links of {name} are a circle"))
}

fn file_of(tree: &Tree, name: &str) -> Option<PathBuf> {
    let names = [Some(name.to_string()), template(name)];
    let paths = names
        .iter()
        .flatten()
        .flat_map(|name| FOLDERS.iter().map(move |folder| Path::new(folder).join(name)));
    paths.into_iter().find(|path| fs::symlink_metadata(tree.path(path)).is_ok())
}

/// Returns what a link leads to, as a path in the machine's root.
fn target_of(tree: &Tree, link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(tree.path(link)).ok()?;
    Some(link.parent().unwrap_or(Path::new("/")).join(target))
}

fn drop_ins(tree: &Tree, name: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let names = drop_in_names(name);
    let (of_type, of_names) = names.split_last().unwrap_or((&names[0], &[]));
    let own = FOLDERS.iter().flat_map(|folder| of_names.iter().map(move |name| (folder, name)));
    let all = own.chain(FOLDERS.iter().map(|folder| (folder, of_type)));
    for (folder, name) in all {
        let folder = Path::new(folder).join(format!("{name}.d"));
        for file in tree.names(&folder).into_iter().filter(|file| file.ends_with(".conf")) {
            let path = folder.join(&file);
            found.entry(file).or_insert(path);
        }
    }
    found
}

/// Reads a unit file or a drop-in. A drop-in that is a link to /dev/null has no text.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn read(tree: &Tree, file: &Path) -> Result<String, String> {
    let mut file = file.to_path_buf();
    for _ in 0..MOST_LINKS {
        match target_of(tree, &file) {
            Some(target) if target == Path::new("/dev/null") => return Ok(String::new()),
            Some(target) => file = target,
            None => break,
        }
    }
    tree.read(&file).ok_or_else(|| format!("cannot read {}, or it is not UTF-8", tree.path(&file).escaped()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Writes files below a new root.
    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(Some(dir.path().to_path_buf()));
        for (path, text) in files {
            tree.replace(path, text).unwrap();
        }
        (dir, tree)
    }

    #[test]
    fn issue_33_a_file_hides_others_of_its_name() {
        let (_dir, tree) = root(&[
            ("/usr/lib/systemd/system/x.service", "a"),
            ("/etc/systemd/system/x.service", "b"),
            ("/usr/lib/systemd/system/x.service.d/1.conf", "c"),
            ("/etc/systemd/system/x.service.d/1.conf", "d"),
            ("/run/systemd/system/service.d/0.conf", "e"),
            ("/etc/systemd/system/x.service.d/note.txt", "f"),
        ]);
        let files = find(&tree, "x.service").unwrap();
        assert_eq!(files.file, Path::new("/etc/systemd/system/x.service"));
        let paths: Vec<_> = files.drop_ins.values().collect();
        let expected =
            ["/run/systemd/system/service.d/0.conf", "/etc/systemd/system/x.service.d/1.conf"].map(Path::new);
        assert_eq!(paths, expected);
    }

    #[test]
    fn issue_33_links_are_aliases_instances_or_masks() {
        let (_dir, tree) = root(&[
            ("/lib/systemd/system/mariadb.service", "a"),
            ("/lib/systemd/system/pg@.service", "b"),
            ("/etc/systemd/system/note", ""),
            ("/opt/linked.service", "c"),
        ]);
        for (target, link) in [
            ("/lib/systemd/system/mariadb.service", "mysql.service"),
            ("mysql.service", "mysqld.service"),
            ("/lib/systemd/system/pg@.service", "pg@1.service"),
            ("/opt/linked.service", "linked.service"),
            ("/dev/null", "masked.service"),
            ("round.service", "round.service"),
        ] {
            symlink(target, tree.path(Path::new(OWN).join(link))).unwrap();
        }
        let name = |name: &str| find(&tree, name).map(|files| files.name);
        assert_eq!(name("mysqld.service").unwrap(), "mariadb.service");
        assert_eq!(name("pg@1.service").unwrap(), "pg@1.service");
        assert_eq!(name("pg@2.service").unwrap(), "pg@2.service");
        let linked = find(&tree, "linked.service").unwrap();
        assert_eq!(read(&tree, &linked.file).unwrap(), "c");
        for (wrong, says) in [("masked", "masked"), ("round", "a circle"), ("none", "no unit")] {
            let error = name(&format!("{wrong}.service")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
