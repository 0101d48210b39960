// SPDX-License-Identifier: Apache-2.0
//! Tests that what packages hold can be used where they are installed: the links of the pages lead somewhere, and programs
//! are compiled against the library.

use super::docs::{book, none};
use super::packages::{add_library, deb, inputs, make, tarball, unpacked};
use crate::common::build::must;
use crate::common::{Cmd, End};
use crate::need;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The tarball and the `.deb` of a package, unpacked: the folders that are their prefixes.
fn both(inputs: &Path, names: [&str; 2]) -> [(TempDir, &'static str); 2] {
    let out = TempDir::new().expect("a folder");
    make(inputs, &["tar", "deb"], out.path());
    [(unpacked(out.path(), &tarball(names[0])), ""), (unpacked(out.path(), &deb(names[1])), "usr")]
}

/// A reader of the installed pages has no source. Files that pages name are there, and so are the headings.
#[test]
fn every_link_of_the_installed_pages_leads_somewhere() {
    need!("dpkg-deb");
    for (root, prefix) in both(inputs().path(), ["hugelift", "hugelift"]) {
        let documents = root.path().join(prefix).join("share/doc/hugelift");
        let pages = book::pages(&documents);
        let (mut faults, mut count) = (Vec::new(), 0);
        for page in &pages {
            for link in page.links.iter().filter(|link| !link.is_external()) {
                count += 1;
                if let Err(why) = link.resolve(&documents, page, &pages) {
                    faults.push(format!("{}:{}: {}: {why}", page.path.display(), link.line, link.to));
                }
            }
        }
        none(&faults);
        assert!(count > 300, "only {count} links were found");
        let script = documents.join("examples/compare/redis.sh");
        must(Command::new("bash").arg("-n").arg(script));
    }
}

/// A compiler finds the library by pkg-config alone, shared and static, and the program lifts itself.
#[test]
fn a_program_is_compiled_against_the_installed_library() {
    need!("dpkg-deb", "pkg-config", "cc", "strip");
    let (inputs, out) = (inputs(), TempDir::new().expect("a folder"));
    add_library(inputs.path());
    let pages = both(inputs.path(), ["hugelift", "hugelift"]);
    let libraries = both(inputs.path(), ["libhugelift", "libhugelift-dev"]);
    for ((pages, prefix), (root, _)) in pages.iter().zip(&libraries) {
        let example = pages.path().join(prefix).join("share/doc/hugelift/examples/library/self.c");
        let found = pkg_config_folder(&root.path().join(prefix));
        let flags = |options: &[&str]| {
            let mut command = Command::new("pkg-config");
            command.args(options).args(["--cflags", "--libs", "hugelift"]).env("PKG_CONFIG_PATH", &found);
            must(command.arg(format!("--define-variable=prefix={}", root.path().join(prefix).display())))
        };
        let program = out.path().join("self");
        for (options, more) in [(&[][..], &[][..]), (&["--static"], &["-static"])] {
            let flags = flags(options);
            must(
                Command::new("cc")
                    .arg("-o")
                    .arg(&program)
                    .arg(&example)
                    .args(flags.split_whitespace())
                    .args(more),
            );
            let folder = found.parent().expect("the folder of libraries");
            let done = Cmd::new([&program]).env("LD_LIBRARY_PATH", folder).bare();
            assert_eq!(done.end, End::Code(0), "{options:?}: {done:?}");
        }
    }
}

/// Returns the folder of a prefix in which pkg-config looks.
fn pkg_config_folder(prefix: &Path) -> PathBuf {
    let multiarch = format!("lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
    let all = [prefix.join("lib/pkgconfig"), prefix.join(multiarch)];
    let found: Vec<&PathBuf> = all.iter().filter(|folder| folder.join("hugelift.pc").exists()).collect();
    assert_eq!(found.len(), 1, "hugelift.pc below {}: {found:?}", prefix.display());
    found[0].clone()
}

/// CMake finds both forms of the library from where its files lie.
#[test]
fn cmake_finds_the_installed_library() {
    need!("dpkg-deb", "cmake", "cc", "strip");
    let inputs = inputs();
    add_library(inputs.path());
    for (root, prefix) in both(inputs.path(), ["libhugelift", "libhugelift-dev"]) {
        let (source, build) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let text = "cmake_minimum_required(VERSION 3.13)\nproject(p C)\nfind_package(hugelift REQUIRED)\n\
                    foreach(kind hugelift static)\nadd_executable(of_${kind} self.c)\n\
                    target_link_libraries(of_${kind} hugelift::${kind})\nendforeach()\n";
        fs::write(source.path().join("CMakeLists.txt"), text).expect("write");
        fs::copy(super::install::top().join("examples/library/self.c"), source.path().join("self.c"))
            .expect("copy");
        let mut cmake = Command::new("cmake");
        cmake.arg("-S").arg(source.path()).arg("-B").arg(build.path());
        must(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", root.path().join(prefix).display())));
        must(Command::new("cmake").arg("--build").arg(build.path()));
        for kind in ["of_hugelift", "of_static"] {
            let done = Cmd::new([build.path().join(kind)]).bare();
            assert_eq!(done.end, End::Code(0), "{kind}: {done:?}");
        }
    }
}
