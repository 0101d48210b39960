// SPDX-License-Identifier: Apache-2.0
//! The messages of the proc connector.
#![no_main]

use hugelift_core::proc_events::{Content, Event, PROCESS_AT, Sequences, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(message) = parse(data) else { return };
    if let Content::Event(Event::Executed(pid) | Event::Ended(pid)) = message.content {
        assert_eq!(data[PROCESS_AT..PROCESS_AT + 4], pid.to_ne_bytes());
    }
    // Nothing depends on what is behind the message.
    assert_eq!(parse(&[data, &[0xff; 9]].concat()), Some(message));
    assert!(!Sequences::default().has_gap(&message));
});
