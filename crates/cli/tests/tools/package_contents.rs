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

/// A reader of the installed pages has no source. Files that pages name are there, and so are the headings.
#[test]
fn every_link_of_the_installed_pages_leads_somewhere() {
    need!("dpkg-deb");
    let out = TempDir::new().expect("a folder");
    make(inputs().path(), &["tar", "deb"], out.path());
    for (package, prefix) in [(tarball("hugelift"), ""), (deb("hugelift"), "usr")] {
        let root = unpacked(out.path(), &package);
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

/// Compilers find the library by what is installed alone, and the program lifts itself.
#[test]
fn programs_are_compiled_against_the_installed_library() {
    need!("dpkg-deb", "pkg-config", "cmake", "cc", "strip");
    let (inputs, out) = (inputs(), TempDir::new().expect("a folder"));
    add_library(inputs.path());
    make(inputs.path(), &["tar", "deb"], out.path());
    for (of_command, of_library, prefix) in
        [(tarball("hugelift"), tarball("libhugelift"), ""), (deb("hugelift"), deb("libhugelift-dev"), "usr")]
    {
        let (pages, library) = (unpacked(out.path(), &of_command), unpacked(out.path(), &of_library));
        let example = pages.path().join(prefix).join("share/doc/hugelift/examples/library/self.c");
        by_pkg_config(&example, &library.path().join(prefix));
        by_cmake(&example, &library.path().join(prefix));
    }
}

/// Links the example with the library below `prefix`, shared and static.
fn by_pkg_config(example: &Path, prefix: &Path) {
    let multiarch = format!("lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
    let all = [prefix.join("lib/pkgconfig"), prefix.join(multiarch)];
    let found: Vec<&PathBuf> = all.iter().filter(|folder| folder.join("hugelift.pc").exists()).collect();
    assert_eq!(found.len(), 1, "hugelift.pc below {}: {found:?}", prefix.display());
    let out = TempDir::new().expect("a folder");
    let program = out.path().join("self");
    for (options, more) in [(&[][..], &[][..]), (&["--static"], &["-static"])] {
        let mut told = Command::new("pkg-config");
        told.args(options).args(["--cflags", "--libs", "hugelift"]).env("PKG_CONFIG_PATH", found[0]);
        // It lies in the place of the prefix that the file names.
        let flags = must(told.arg(format!("--define-variable=prefix={}", prefix.display())));
        let mut cc = Command::new("cc");
        must(cc.arg("-o").arg(&program).arg(example).args(flags.split_whitespace()).args(more));
        let libraries = found[0].parent().expect("the folder of libraries");
        let done = Cmd::new([&program]).env("LD_LIBRARY_PATH", libraries).bare();
        assert_eq!(done.end, End::Code(0), "{options:?}: {done:?}");
    }
}

/// Links it with both forms, which CMake finds from where its files lie.
fn by_cmake(example: &Path, prefix: &Path) {
    let (source, build) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let text = "cmake_minimum_required(VERSION 3.13)\nproject(p C)\nfind_package(hugelift REQUIRED)\n\
                foreach(kind hugelift static)\nadd_executable(of_${kind} self.c)\n\
                target_link_libraries(of_${kind} hugelift::${kind})\nendforeach()\n";
    fs::write(source.path().join("CMakeLists.txt"), text).expect("write");
    fs::copy(example, source.path().join("self.c")).expect("copy");
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(source.path()).arg("-B").arg(build.path());
    must(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    must(Command::new("cmake").arg("--build").arg(build.path()));
    for kind in ["of_hugelift", "of_static"] {
        let done = Cmd::new([build.path().join(kind)]).bare();
        assert_eq!(done.end, End::Code(0), "{kind}: {done:?}");
    }
}
