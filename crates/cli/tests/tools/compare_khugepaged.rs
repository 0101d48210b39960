// SPDX-License-Identifier: Apache-2.0
//! A test of `hugelift compare --pid` on memory that khugepaged makes huge meanwhile. It changes settings of the machine, and so runs
//! without other tests.

use super::compare_memory::{MB, finish, json, memory, of_periods, reader};
use crate::common::guard::{Exclusive, Settings};
use crate::{need_root, skip};
use std::fs;

const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";

/// The program asks for huge pages, and khugepaged reads 128 MB of memory every 0.7 s.
#[test]
fn issue_31_8_memory_that_khugepaged_joins_is_split_again() {
    need_root!();
    let _alone = match Exclusive::take() {
        Ok(alone) => alone,
        Err(why) => skip!("{why}"),
    };
    let settings = [("pages_to_scan", "32768"), ("scan_sleep_millisecs", "700")];
    let paths = settings.map(|(name, _)| format!("{KHUGEPAGED}/{name}"));
    let _kept = Settings::keep(&paths.each_ref().map(String::as_str)).expect(KHUGEPAGED);
    for ((_, value), path) in settings.iter().zip(&paths) {
        fs::write(path, value).expect(path);
    }
    let held = reader("huge");
    let result = json(&held, "compare", &["--same-copy", "--parts", "anon", "--pairs", "40"]);
    let (small, huge) = (of_periods(&result, 0), of_periods(&result, 1));
    assert_eq!((small.len(), huge.len()), (40, 40));
    assert!(huge.iter().all(|bytes| *bytes >= 60 * MB), "{huge:?}");
    assert!(small.iter().all(|bytes| *bytes <= 4 * MB), "{small:?}");
    assert!(memory(&held).anon_huge >= 60 * MB);
    finish(held);
}
