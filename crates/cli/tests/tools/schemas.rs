// SPDX-License-Identifier: Apache-2.0
//! The check of outputs against the published schemas can fail, and there is a schema for each `--json`. The
//! outputs of real runs are checked where the tests of each command read them.

use crate::common::schema::fits;
use crate::common::{Cmd, HUGELIFT, Held, fat};
use serde_json::{Value, json};
use std::panic::catch_unwind;

fn refuses(name: &'static str, value: Value) -> bool {
    catch_unwind(move || fits(name, &value)).is_err()
}

#[test]
fn the_check_can_fail() {
    let good = json!({ "version": 1, "entries": [{ "object": { "bytes": [47, 255] }, "files": ["e"], "bytes": 1,
        "huge_bytes": 0, "users": [1], "made": 1, "used": 2, "state": "good" }] });
    fits("store-list", &good);
    for (place, wrong) in [
        ("/version", json!(2)),
        ("/entries", json!({})),
        ("/entries/0/object", json!({ "bytes": [256] })),
        ("/entries/0/bytes", json!(-1)),
        ("/entries/0/bytes", json!("1")),
        ("/entries/0/users/0", json!(1.5)),
        ("/entries/0/state", json!("bad")),
        ("/entries/0", json!({})),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(place).expect("a place") = wrong;
        assert!(refuses("store-list", bad.clone()), "{place}: {bad}");
    }
    let mut more = good;
    more["entries"][0]["more"] = json!(1);
    assert!(refuses("store-list", more));
}

/// Also for a process that is gone.
#[test]
fn what_attach_and_restore_print() {
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let pid = held.pid().to_string();
    for words in [&["attach"][..], &["attach", "--whole"], &["attach", "--parts", "bss"], &["restore"]] {
        let outcome = Cmd::new([HUGELIFT]).args(words).args(["--json", &pid]).bare();
        let shown: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        fits("attach", &shown);
        // Nobody has changed the code of this program.
        let restored = &shown["processes"][0]["restored"];
        let is_all =
            |all: &Value| all["copied_bytes"] == all["restored_bytes"] && all["differing_bytes"] == 0;
        assert!(if words == ["restore"] { is_all(restored) } else { restored.is_null() }, "{shown}");
    }
    // Its row says why it was not changed.
    drop(held);
    let outcome = Cmd::new([HUGELIFT, "attach", "--json", &pid]).bare();
    let shown: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    fits("attach", &shown);
    assert!(shown["processes"][0]["error"].is_string(), "{shown}");
}
