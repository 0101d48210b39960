// SPDX-License-Identifier: Apache-2.0
//! The rows for memory that is in no object: anonymous, shared, and data files.

use hugelift_core::addr::human_bytes;
use hugelift_core::report::{DataFile, Report, SharedMemory, Total};
use hugelift_core::snapshot::Part;
use hugelift_core::unused::Unused;

/// So many data files are named.
const NAMED: usize = 4;

/// Returns the sums of a part: "160 MB, liftable 128 MB, huge 64 MB (50 % of what is liftable)".
pub fn sums(total: &Total) -> String {
    let percent = match total.liftable_bytes {
        0 => String::new(),
        n => format!(" ({} % of what is liftable)", u128::from(total.huge_bytes) * 100 / u128::from(n)),
    };
    let [bytes, liftable, huge] = [total.bytes, total.liftable_bytes, total.huge_bytes].map(human_bytes);
    format!("{bytes}, liftable {liftable}, huge {huge}{percent}")
}

/// Returns the rows, each with its first word. Less than a huge page says nothing, and has none.
pub fn rows(report: &Report, verbose: bool) -> Vec<[String; 2]> {
    let mut rows = Vec::new();
    for (part, total) in [(Part::Anon, report.anonymous), (Part::Jit, report.jit)] {
        let total = total.filter(|total| total.liftable_bytes > 0);
        rows.extend(total.map(|total| [part.to_string(), sums(&total)]));
    }
    if let Some(shm) = report.shm {
        rows.extend(shared(&shm, report).map(|line| [Part::Shm.to_string(), line]));
    }
    rows.extend(report.unused.map(|unused| ["zeros".into(), zeros(&unused, report.pid)]));
    let files = report.data_files.as_deref().unwrap_or_default();
    let shown = if verbose { files.len() } else { files.len().min(NAMED) };
    rows.extend(files[..shown].iter().map(|file| ["file".into(), data_file(file)]));
    if shown < files.len() {
        let more = files.len() - shown;
        let bytes = files[shown..].iter().map(|file| file.resident_bytes).sum();
        let plural = if more == 1 { "file" } else { "files" };
        rows.push([
            String::new(),
            format!("and {more} more {plural}, {} in memory (-v)", human_bytes(bytes)),
        ]);
    }
    rows
}

fn shared(shm: &SharedMemory, report: &Report) -> Option<String> {
    let is_held = shm.incongruent_bytes >= report.page_size;
    if shm.total.liftable_bytes == 0 && !is_held {
        return None;
    }
    let held = human_bytes(shm.incongruent_bytes);
    let pid = report.pid.map(|pid| format!(" (hugelift doctor --pid {pid})")).unwrap_or_default();
    let why = format!("; {held} is at addresses that do not match its offsets{pid}");
    Some(sums(&shm.total) + if is_held { &why } else { "" })
}

/// Returns how much of its huge pages a process wastes, and what gives it back.
fn zeros(unused: &Unused, pid: Option<u32>) -> String {
    let [huge, sparse, zeros] = [unused.huge_bytes, unused.sparse_bytes, unused.zero_bytes].map(human_bytes);
    match (unused.sparse_bytes, pid) {
        (0, _) | (_, None) => format!("no huge page of {huge} private memory is mostly zeros"),
        (_, Some(pid)) => format!(
            "{zeros} in the huge pages that are mostly zeros ({sparse} of {huge}); hugelift restore --unused {pid} gives them back"
        ),
    }
}

fn data_file(file: &DataFile) -> String {
    let [bytes, resident, huge] = [file.bytes, file.resident_bytes, file.huge_bytes].map(human_bytes);
    let reason = file.reason.map(|reason| format!("; {reason}")).unwrap_or_default();
    let hint = file.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}: {bytes} mapped, {resident} in memory, huge {huge}{reason}{hint}", file.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::maps::FileId;
    use hugelift_core::report::Small;
    use hugelift_core::report::example::report;

    const MB: u64 = 1 << 20;

    fn file(n: u64, hint: Option<&str>) -> DataFile {
        DataFile {
            path: format!("/srv/{n}").into(),
            bytes: 8 * MB,
            resident_bytes: n * MB,
            liftable_bytes: if n == 3 { 0 } else { 8 * MB },
            huge_bytes: 0,
            deleted: false,
            reason: match n {
                3 => Some(Small::NotCongruent),
                5 => Some(Small::SmallFolios),
                _ => None,
            },
            hint: hint.map(String::from),
            id: FileId::default(),
            liftable: Vec::new(),
            small_bytes: 0,
        }
    }

    #[test]
    fn issue_32_memory_that_is_in_no_object_has_rows() {
        let mut report = report(&[(0, MB)], 2 * MB);
        assert!(rows(&report, false).is_empty());
        let total = Total { bytes: 16 * MB, liftable_bytes: 8 * MB, huge_bytes: 4 * MB };
        report.shm = Some(SharedMemory { total, incongruent_bytes: 6 * MB, mounted_bytes: 0 });
        report.data_files =
            Some((0..6).rev().map(|n| file(n, (n == 5).then_some("hugelift attach 5"))).collect());
        let lines: Vec<String> = rows(&report, false).into_iter().map(|row| row.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "shm 16 MB, liftable 8 MB, huge 4 MB (50 % of what is liftable); 6 MB is at addresses that do not match its \
                 offsets (hugelift doctor --pid 7)",
                "file /srv/5: 8 MB mapped, 5 MB in memory, huge 0 B; its page cache is in small folios; hugelift attach 5",
                "file /srv/4: 8 MB mapped, 4 MB in memory, huge 0 B",
                "file /srv/3: 8 MB mapped, 3 MB in memory, huge 0 B; its address does not match its offset",
                "file /srv/2: 8 MB mapped, 2 MB in memory, huge 0 B",
                " and 2 more files, 1 MB in memory (-v)",
            ]
        );
        assert_eq!(rows(&report, true).len(), 7);
        report.shm = Some(SharedMemory { total: Total::default(), incongruent_bytes: MB, mounted_bytes: 0 });
        report.data_files = None;
        assert!(rows(&report, false).is_empty());
    }
}
