// SPDX-License-Identifier: Apache-2.0
//! `struct hugelift_report`.

#![allow(non_camel_case_types, reason = "the names of C")]

use super::edge::quietly;
use super::options::{
    HUGELIFT_PART_BSS, HUGELIFT_PART_DATA, HUGELIFT_PART_HEAP, HUGELIFT_PART_RODATA, HUGELIFT_PART_TEXT,
};
use crate::outcome::Outcome;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::Untrusted;
use hugelift_core::report::{PartReport, Total};
use hugelift_core::snapshot::Part;
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What came of a call: what smaps shows, not what was asked for.
pub struct hugelift_report {
    outcome: Outcome,
    summary: CString,
    /// Null until somebody has asked for it. No `OnceLock`: in a child of fork(2) it might wait for a thread of the
    /// parent.
    json: AtomicPtr<c_char>,
}

impl hugelift_report {
    /// Returns the details as JSON.
    fn json(&self) -> *const c_char {
        let known = self.json.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let made = CString::new(self.outcome.json()).unwrap_or_default().into_raw();
        match self.json.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: the text was made above, and nobody else has seen it.
                drop(unsafe { CString::from_raw(made) });
                other
            }
        }
    }
}

impl Drop for hugelift_report {
    fn drop(&mut self) {
        let json = *self.json.get_mut();
        if !json.is_null() {
            // SAFETY: the pointer came from `CString::into_raw`, and nobody uses the report any more.
            drop(unsafe { CString::from_raw(json) });
        }
    }
}

/// Makes the report that a caller gets.
pub(super) fn handed_out(outcome: Outcome) -> *mut hugelift_report {
    let summary = CString::new(outcome.summary()).unwrap_or_default();
    Box::into_raw(Box::new(hugelift_report { outcome, summary, json: AtomicPtr::default() }))
}

/// Returns a part of an object as a line.
pub(super) fn line(path: &Untrusted, part: &PartReport) -> String {
    let huge = human_bytes(part.huge_bytes);
    let mut line =
        format!("{path}: {} at {:#x}: {huge} of {} huge", part.part, part.start, human_bytes(part.bytes));
    for skip in &part.skips {
        line += &format!("; {} {}", human_bytes(skip.bytes), skip.detail);
    }
    line
}

/// Returns the sum over the parts that `parts` names.
fn sum(report: &hugelift_report, parts: u32, bytes: impl Fn(Total) -> u64) -> u64 {
    let all = [
        (HUGELIFT_PART_TEXT, Part::Text),
        (HUGELIFT_PART_RODATA, Part::Rodata),
        (HUGELIFT_PART_DATA, Part::Data),
        (HUGELIFT_PART_DATA, Part::Relro),
        (HUGELIFT_PART_BSS, Part::Bss),
        (HUGELIFT_PART_HEAP, Part::Heap),
    ];
    let wanted = all.iter().filter(|(bit, _)| parts & bit != 0);
    wanted.map(|(_, part)| bytes(report.outcome.total(*part))).sum()
}

/// Returns the bytes of these parts (HUGELIFT_PART_*, added up) that huge pages map; 0 for a null pointer.
///
/// Thread-safe, async-signal-safe.
///
/// # Safety
/// `report` is null or a report that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_report_huge_bytes(report: *const hugelift_report, parts: u32) -> u64 {
    // SAFETY: the caller passes such a pointer.
    unsafe { report.as_ref() }.map_or(0, |report| sum(report, parts, |total| total.huge_bytes))
}

/// Returns the bytes of these parts (HUGELIFT_PART_*, added up) that huge pages could map: whole huge pages inside a
/// part; 0 for a null pointer.
///
/// Thread-safe, async-signal-safe.
///
/// # Safety
/// `report` is null or a report that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_report_liftable_bytes(report: *const hugelift_report, parts: u32) -> u64 {
    // SAFETY: the caller passes such a pointer.
    unsafe { report.as_ref() }.map_or(0, |report| sum(report, parts, |total| total.liftable_bytes))
}

/// Returns the report in one line of English; "" for a null pointer. The text is valid until the report is freed.
///
/// Thread-safe, async-signal-safe.
///
/// # Safety
/// `report` is null or a report that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_report_summary(report: *const hugelift_report) -> *const c_char {
    // SAFETY: the caller passes such a pointer.
    unsafe { report.as_ref() }.map_or(c"".as_ptr(), |report| report.summary.as_ptr())
}

/// Returns all details as JSON, in the form of `hugelift inspect --json`; "" for a null pointer. The text is valid until
/// the report is freed.
///
/// Thread-safe. Not async-signal-safe.
///
/// # Safety
/// `report` is null or a report that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_report_json(report: *const hugelift_report) -> *const c_char {
    // SAFETY: the caller passes such a pointer.
    let report = unsafe { report.as_ref() };
    let json = report.and_then(|report| quietly(|| report.json()));
    json.unwrap_or(c"".as_ptr())
}

/// Frees a report. A null pointer is allowed.
///
/// Thread-safe. Not async-signal-safe.
///
/// # Safety
/// `report` is null or a report that was not freed, and nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugelift_report_free(report: *mut hugelift_report) {
    if !report.is_null() {
        // SAFETY: the pointer came from `handed_out`, and the caller uses it no more.
        quietly(|| drop(unsafe { Box::from_raw(report) }));
    }
}
