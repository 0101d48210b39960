// SPDX-License-Identifier: Apache-2.0
//! Packages of Debian that the machine of these tests installs: hugelift's own, with the scripts of its maintainers, and two
//! with the program of a server each, in two versions.

use crate::common::HUGELIFT;
use crate::common::build::must;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the top folder of the project.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a package, before it is made.
struct Package {
    root: tempfile::TempDir,
    name: String,
}

impl Package {
    fn new(name: &str, version: u32) -> Package {
        let package =
            Package { root: tempfile::tempdir().expect("a folder"), name: format!("{name}_{version}") };
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: A test\n"
        );
        fs::set_permissions(package.root.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        package.write("DEBIAN/control", control.as_bytes(), 0o644);
        package
    }

    fn write(&self, to: &str, bytes: &[u8], mode: u32) {
        let path = self.root.path().join(to);
        let folder = path.parent().expect("a folder");
        must(Command::new("install").args(["-d", "-m", "755"]).arg(folder));
        fs::write(&path, bytes).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) {
        let bytes = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        self.write(to, &bytes, mode);
    }

    /// Makes the package, in this folder.
    fn make(self, folder: &Path) -> PathBuf {
        let made = folder.join(format!("{}.deb", self.name));
        let mut command = Command::new("dpkg-deb");
        command.args(["-Znone", "--root-owner-group", "--build"]);
        must(command.arg(self.root.path()).arg(&made));
        made
    }
}

/// Makes a package with the program of a server, in this folder. Each version of the program has other bytes.
pub fn server(folder: &Path, name: &str, program: &Path, to: &str, version: u32) -> PathBuf {
    let package = Package::new(name, version);
    let mut bytes = fs::read(program).expect("the program");
    bytes.extend(version.to_le_bytes());
    package.write(to, &bytes, 0o755);
    package.make(folder)
}

/// Makes a package with what hugelift's own has that matters here, in this folder.
pub fn hugelift(folder: &Path) -> PathBuf {
    let package = Package::new("hugelift", 1);
    package.copy(Path::new(HUGELIFT), "usr/bin/hugelift", 0o755);
    let unit = "usr/lib/systemd/system/hugelift.service";
    package.copy(&top().join("systemd/hugelift.service"), unit, 0o644);
    for name in ["convert", "unwrap-all"] {
        package.copy(&top().join("packaging").join(name), &format!("usr/lib/hugelift/{name}"), 0o755);
    }
    for name in ["postinst", "prerm", "postrm"] {
        package.copy(&top().join("packaging/deb/hugelift").join(name), &format!("DEBIAN/{name}"), 0o755);
    }
    package.make(folder)
}
