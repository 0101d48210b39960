// SPDX-License-Identifier: Apache-2.0
//! A unit of systemd, its drop-in, and an option for the program that is put in front.
#![no_main]

use hugelift_core::units::drop_in::MARK;
use hugelift_core::units::{Unit, wrap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (String, String, String)| {
    let (file, drop_in, option) = (input.0.as_str(), input.1.as_str(), input.2);
    let unit = match Unit::read([file, drop_in]) {
        Ok(unit) => unit,
        Err(refusal) => return assert!(!refusal.to_string().contains('\n'), "{refusal}"),
    };
    match wrap("x.service", &unit, "/usr/bin/hugelift", &[option.replace('\0', "")]) {
        Ok(made) => {
            assert!(made.text.starts_with(MARK));
            let both = Unit::read([file, drop_in, &made.text]).expect("a unit");
            assert!(both.is_wrapped() && both.commands.len() == unit.commands.len(), "{}", made.text);
        }
        Err(refusal) => assert!(!refusal.to_string().contains('\n'), "{refusal}"),
    }
});
