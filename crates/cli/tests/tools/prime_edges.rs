// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift prime` on what is in no whole huge page: it is read into folios as large as fit, and what is in use stays
//! as it is.

use super::prime::prime;
use crate::common::{Cmd, HUGELIFT, Held, Primed, fat};
use crate::{need_root, skip};
use serde_json::Value;
use std::fs;
use std::path::Path;

const LARGE: u64 = 64 << 10;

/// Returns the bytes of the edges, and how many of them are in large folios.
fn edges(report: &Value) -> (u64, u64) {
    let edges = &report["files"][0]["edges"];
    let of = |key: &str| edges[key].as_u64().unwrap_or_else(|| panic!("{report:#}"));
    (of("bytes"), of("large_bytes"))
}

/// Makes a copy of a static program of 6 MB of text and 6 MB of constants, in small pages of the page cache.
fn small() -> Primed {
    Primed::small(&fat("hold").flags(&["-no-pie", "-fno-pie", "-static"]).build())
}

fn name(file: &Primed) -> &str {
    file.path().to_str().unwrap()
}

macro_rules! needs_large_folios {
    () => {
        if let Err(why) = Primed::new(Path::new(HUGELIFT)) {
            skip!("{why}");
        }
    };
}

#[test]
fn issue_32_5_edges_are_read_into_folios_as_large_as_fit() {
    need_root!();
    needs_large_folios!();
    let file = small();
    let bytes = fs::read(file.path()).unwrap();
    let (_, before) = prime(&["--check", name(&file)]);
    let (all, large) = edges(&before);
    assert!(all > 4 * LARGE && large < LARGE, "{before:#}");
    let (_, after) = prime(&[name(&file)]);
    let (same, large) = edges(&after);
    // The end of the file may not fill a folio of 64 kB.
    assert!(same == all && large + 2 * LARGE > all, "{after:#}");
    assert!(fs::read(file.path()).unwrap() == bytes, "the file's bytes were changed");
    // A program that runs has them so, by the kernel's flags of its pages.
    let held = Held::start(&Cmd::new([file.path()]), None, file.path());
    let shown = Cmd::new([HUGELIFT, "inspect", "--json", &held.pid().to_string()]).bare();
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_else(|e| panic!("{e}: {shown:?}"));
    for part in ["text", "rodata"] {
        let sizes =
            shown["folios"]["parts"][part]["bytes"].as_object().unwrap_or_else(|| panic!("{shown:#}"));
        let of = |(size, bytes): (&String, &Value)| {
            (size.parse::<u64>().unwrap() < LARGE).then(|| bytes.as_u64().unwrap())
        };
        let small: u64 = sizes.iter().filter_map(of).sum();
        assert!(small < 2 * LARGE, "{part}: {sizes:?}");
    }
    let said = Cmd::new([HUGELIFT, "prime", "--check", name(&file)]).bare();
    assert!(said.stdout.contains(" outside of whole huge pages, of which "), "{said:?}");
}

#[test]
fn issue_32_5_edges_in_use_stay() {
    need_root!();
    needs_large_folios!();
    let file = small();
    let held = Held::start(&Cmd::new([file.path()]), None, file.path());
    let (_, before) = prime(&["--check", name(&file)]);
    let (_, after) = prime(&[name(&file)]);
    assert_eq!(edges(&after), edges(&before), "{after:#}");
    drop(held);
}

#[test]
fn issue_32_5_users_that_see_no_folios_are_told_nothing() {
    need_root!();
    let file = small();
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let out = Cmd::new([HUGELIFT, "prime", "--json", name(&file)]).under(user).bare();
    let report: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let of = report["files"][0].as_object().unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!((of.get("edges"), of.get("error")), (Some(&Value::Null), Some(&Value::Null)), "{report:#}");
}
