// SPDX-License-Identifier: Apache-2.0
//! The library, built as a user builds it, and programs that are linked with it.

use crate::common::build::{Victim, fat};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the top folder of the project.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli is below the top")
}

/// Returns a folder of the library's crate.
pub fn of_library(folder: &str) -> PathBuf {
    top().join("crates/library").join(folder)
}

/// Returns an example of programs that lift themselves.
pub fn example(name: &str) -> PathBuf {
    top().join("examples/library").join(name)
}

/// Builds the library with the settings of the tests, once, and returns the folder with its two forms.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
        // cargo itself waits for other builds of the same folder.
        let mut script = Command::new(top().join("ci/library.sh"));
        script.arg("dev").arg(&out).env("CARGO_TARGET_DIR", target).stdin(Stdio::null());
        let made = script.output().expect("ci/library.sh starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        out
    })
}

/// How a program is linked with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linking {
    /// With the shared object, as compilers do by default.
    Shared,
    /// With the archive, at an address of the loader's choice.
    Archive,
    /// With the archive, at a fixed address.
    NoPie,
    /// With the archive, and with no shared object at all.
    Static,
    /// The same, at an address of the kernel's choice.
    StaticPie,
}

impl Linking {
    pub const ALL: [Linking; 5] =
        [Linking::Shared, Linking::Archive, Linking::NoPie, Linking::Static, Linking::StaticPie];

    /// Returns the flags for the compiler. They stand before the source, so that the archive is kept whole.
    pub fn flags(self) -> Vec<String> {
        let library = library();
        let archive = library.join("libhugelift.a");
        let include = of_library("include");
        let mut flags =
            vec![format!("-I{}", include.display()), format!("-I{}/hugelift/compat", include.display())];
        // The name of a program depends on what it is made of.
        let built = archive.metadata().and_then(|m| m.modified()).expect("the archive was built");
        flags.push(format!("-DBUILT=\"{built:?}\"").replace(' ', ""));
        let whole = |flags: &mut Vec<String>, own: &[&str]| {
            flags.extend(own.iter().map(ToString::to_string));
            flags.extend(["-Wl,--whole-archive".into(), archive.display().to_string()]);
            flags.push("-Wl,--no-whole-archive".into());
        };
        match self {
            Linking::Shared => {
                flags.extend(["-Wl,--no-as-needed".into(), format!("-L{}", library.display())]);
                flags.extend(["-lhugelift".into(), format!("-Wl,-rpath,{}", library.display())]);
            }
            Linking::Archive => whole(&mut flags, &["-Wl,--no-as-needed", "-lgcc_s"]),
            Linking::NoPie => whole(&mut flags, &["-no-pie", "-Wl,--no-as-needed", "-lgcc_s"]),
            Linking::Static => whole(&mut flags, &["-static"]),
            Linking::StaticPie => whole(&mut flags, &["-static-pie"]),
        }
        flags
    }
}

/// Returns a victim with megabytes of code and constants that is linked with the library.
pub fn fat_with(source: &'static str, linking: Linking) -> Victim {
    let flags = linking.flags();
    fat(source).flags(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the path of a shared object that is large enough to be lifted; `number` tells several apart.
pub fn large_object(number: u32) -> PathBuf {
    fat("by_itself_library").library().flags(&[&format!("-DNUMBER={number}")]).build()
}
