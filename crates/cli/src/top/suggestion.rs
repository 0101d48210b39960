// SPDX-License-Identifier: Apache-2.0
//! What to type for the selected process.

use hugelift_measure::processes::Row;

/// Returns the command that fits a process, with what it does.
pub fn suggestion(row: &Row, is_root: bool) -> String {
    let pid = row.pid;
    match (&row.text, row.unknown) {
        (_, Some("unreadable")) if is_root => {
            format!("hugelift inspect {pid}   (not even root may read the process here; this says why)")
        }
        (_, Some("unreadable")) => {
            format!("sudo hugelift inspect {pid}   (this user may not read the process)")
        }
        (Some(text), _) if text.whole_bytes == 0 => {
            format!("hugelift inspect {pid}   (its code fills no huge page)")
        }
        (Some(text), _) if text.huge_bytes > text.whole_bytes / 2 => {
            format!("hugelift inspect {pid}   (its code is mostly huge; this shows the rest)")
        }
        (Some(_), _) => {
            format!("hugelift compare --pid {pid}   (does it pay? hugelift attach {pid} lifts it)")
        }
        (None, _) => format!("hugelift inspect {pid}   (what is huge, and what is not)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::policy::Backing;
    use hugelift_measure::processes::text_coverage::TextCoverage;

    #[test]
    fn a_command_for_each_state() {
        let of = |text: Option<(u64, u64, u64)>, unknown| {
            let row = Row {
                pid: 7,
                user: "root".into(),
                command: "x".into(),
                cpus: 1.0,
                faults_per_s: 0.0,
                major_faults_per_s: 0.0,
                text_bytes: None,
                executable_text_bytes: 0,
                text: text.map(|(all, whole, huge)| TextCoverage {
                    whole_bytes: whole << 20,
                    ..TextCoverage::new(all << 20, [(Backing::Thp, huge << 20)])
                }),
                unknown,
                walk_share: None,
                code_in_use: None,
            };
            assert!(!suggestion(&row, true).contains("sudo"));
            suggestion(&row, false)
        };
        assert!(of(Some((10, 8, 0)), None).starts_with("hugelift compare --pid 7 "));
        assert!(of(Some((10, 10, 8)), None).starts_with("hugelift inspect 7   (its code is mostly huge"));
        // Most of its code is in small libraries, and what can be lifted is.
        assert!(of(Some((10, 4, 4)), None).starts_with("hugelift inspect 7   (its code is mostly huge"));
        assert!(of(Some((9, 0, 0)), None).starts_with("hugelift inspect 7   (its code fills no"));
        assert!(of(None, Some("unreadable")).starts_with("sudo hugelift inspect 7 "));
        assert!(of(None, Some("not-read")).starts_with("hugelift inspect 7 "));
    }
}
