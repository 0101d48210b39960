// SPDX-License-Identifier: Apache-2.0
//! What people type first and hugelift does not take: the line says what works, and that works.

use crate::common::run::{End, NO_STORE};
use crate::common::{CGroup, Cmd, HUGELIFT, Held, Outcome, fat};
use crate::{need_root, skip};

fn hugelift(words: &[&str]) -> Outcome {
    Cmd::new([HUGELIFT]).args(words).env("HUGELIFT_STORE", NO_STORE).bare()
}

#[test]
fn issue_29_b10_a_name_in_place_of_a_process_id() {
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    let name = program.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    for verb in ["attach", "restore"] {
        let refused = hugelift(&[verb, name]);
        let helps = format!("--name {name}");
        assert!(refused.end == End::Code(125) && refused.stderr.contains(&helps), "{refused:?}");
    }
    let found = hugelift(&["attach", "--whole", "--dry-run", "--name", name]);
    assert!(found.stdout.contains(&format!("process {}", held.pid())), "{found:?}");
    for words in [&["doctor", "--pid", "no"][..], &["compare", "--pid", "no"], &["stat", "--pid", "no"]] {
        let refused = hugelift(words);
        assert!(refused.end == End::Code(125) && refused.stderr.contains("pidof no"), "{refused:?}");
    }
}

#[test]
fn issue_29_b10_a_command_line_in_quotes() {
    for verb in ["compare", "run"] {
        let refused = hugelift(&[verb, "sleep 0.1"]);
        assert_eq!(refused.end, End::Code(127), "{refused:?}");
        assert!(
            refused.stderr.contains("; it is one word: ") && refused.stderr.contains("sh -c 'sleep 0.1'")
        );
    }
    assert!(!hugelift(&["run", "no-such program"]).stderr.contains("one word"), "there is no such program");
}

#[test]
fn issue_29_b10_a_control_group_by_its_whole_path() {
    need_root!();
    let group = match CGroup::new("memory").or_else(|_| CGroup::v2()) {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), None, &program);
    group.take(held.pid());
    let path = group.path().to_str().expect("UTF-8");
    let inside = group.path_of(held.pid()).expect("its group");
    for path in [path, &inside] {
        let found = hugelift(&["attach", "--whole", "--dry-run", "--cgroup", path]);
        assert!(found.stdout.contains(&format!("process {}", held.pid())), "{path}: {found:?}");
    }
}
