// SPDX-License-Identifier: Apache-2.0
//! Builds the loaded form of this crate, a shared object, and puts it beside the executables of
//! the build.
//!
//! It is no `cdylib` of cargo's: without the standard library such an object can only be linked
//! with `panic=abort`, which cargo sets for a whole workspace or not at all.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loaded)");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let built = out.join("libhugelift_inside.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-name", "hugelift_inside", "--crate-type", "cdylib", "--edition", "2024"]);
    rustc.args(["--cfg", "loaded", "-C", "panic=abort", "-C", "opt-level=s", "-C", "strip=symbols"]);
    // The library uses no C library, as it is loaded into programs of any. musl's targets build shared
    // objects only with `-crt-static`. AArch64's outlined atomics choose their instructions at run time by
    // the C library's getauxval.
    let aarch64 = variable("CARGO_CFG_TARGET_ARCH") == "aarch64";
    let features = if aarch64 { "-crt-static,-outline-atomics" } else { "-crt-static" };
    rustc.arg("-C").arg(format!("target-feature={features}"));
    for flag in ["-nostartfiles", "-nostdlib", "-Wl,-z,defs,-z,now,-z,relro,-z,noexecstack"] {
        rustc.arg("-C").arg(format!("link-arg={flag}"));
    }
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    rustc.args(["--target", &variable("TARGET"), "src/lib.rs", "-o"]).arg(&built);
    let status = rustc.status().unwrap_or_else(|e| panic!("{rustc:?}: {e}"));
    assert!(status.success(), "{rustc:?}: {status}");
    publish(&built, &out);
}

/// `OUT_DIR` is `PROFILE/build/PACKAGE-HASH/out`.
fn publish(built: &Path, out: &Path) {
    let profile = out.ancestors().nth(3).expect("cargo's folder of the profile");
    let name = built.file_name().expect("a file");
    // Renamed into place: a program may have the old one mapped.
    let fresh = profile.join(format!(".libhugelift_inside.{}", std::process::id()));
    std::fs::copy(built, &fresh).unwrap_or_else(|e| panic!("copy to {}: {e}", fresh.display()));
    std::fs::rename(&fresh, profile.join(name)).unwrap_or_else(|e| panic!("rename: {e}"));
}
