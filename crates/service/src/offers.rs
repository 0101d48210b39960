// SPDX-License-Identifier: Apache-2.0
//! What the service could keep on huge pages if a person agreed: files that are huge only as a copy in their place.

use crate::answers::status::{FileStatus, Status};
use hugelift_core::addr::human_bytes;
use hugelift_core::prime::Obstacle;
use hugelift_core::printable::quoted;
use hugelift_core::service::offer::Offer;

/// Less is not worth a decision.
const LEAST: u64 = 2 << 20;

/// Returns the offers for the files that it keeps.
pub fn of_files(status: &Status) -> Vec<Offer> {
    status.files.iter().filter_map(of_file).collect()
}

fn of_file(file: &FileStatus) -> Option<Offer> {
    let cured = file.obstacles.iter().filter(|obstacle| Obstacle::key_is_cured_by_copy(&obstacle.reason));
    let bytes = cured.map(|obstacle| obstacle.bytes).fold(0, u64::saturating_add);
    // A path with bytes that are not shown as they are is not a word that a person types.
    let shown = file.path.to_string();
    let path = file.path.as_os_str().to_str().filter(|path| *path == shown)?;
    let word = quoted(file.path.as_os_str());
    (bytes >= LEAST).then(|| Offer {
        name: path.to_string(),
        what: format!("{} of the code of {path} is not huge: {}", human_bytes(bytes), why(file)),
        costs: "a copy takes its place and the original stays beside it: that takes twice the disk space, and the \
                package manager knows only the original"
            .into(),
        command: format!("hugelift prime --replace {word}"),
        after: Some("restart its programs: those that run keep the original".into()),
        undo: Some(format!("hugelift prime --restore {word}")),
    })
}

/// Returns the reasons that a copy cures, in words.
fn why(file: &FileStatus) -> String {
    let cured = file.obstacles.iter().filter(|obstacle| Obstacle::key_is_cured_by_copy(&obstacle.reason));
    let mut words: Vec<&str> = cured.map(|obstacle| obstacle.detail.as_str()).collect();
    words.sort_unstable();
    words.dedup();
    // A line of the list.
    words.join("; ").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::status::ObstacleStatus;
    use hugelift_core::printable::Untrusted;

    fn file(path: &str, reason: &str, bytes: u64) -> FileStatus {
        let obstacle = ObstacleStatus { reason: reason.into(), bytes, detail: "in use by 7 (db)".into() };
        FileStatus {
            path: Untrusted::from(std::path::PathBuf::from(path)),
            whole_bytes: 16 << 20,
            huge_bytes: 0,
            locked_bytes: 0,
            summary: String::new(),
            obstacles: vec![obstacle],
        }
    }

    #[test]
    fn issue_33_2_a_file_that_a_copy_makes_huge_is_offered() {
        let offer = of_file(&file("/usr/bin/my db", "in-use", 8 << 20)).expect("an offer");
        assert_eq!(offer.name, "/usr/bin/my db");
        assert_eq!(offer.command, "hugelift prime --replace '/usr/bin/my db'");
        assert_eq!(offer.what, "8 MB of the code of /usr/bin/my db is not huge: in use by 7 (db)");
        assert_eq!(offer.undo.as_deref(), Some("hugelift prime --restore '/usr/bin/my db'"));
        for reason in ["not-congruent", "stays-in-memory"] {
            assert!(of_file(&file("/usr/bin/db", reason, 8 << 20)).is_some(), "{reason}");
        }
    }

    #[test]
    fn issue_33_2_what_no_copy_cures_is_not_offered() {
        for reason in ["no-large-folios", "fragmented", "being-written", "of-a-later-version"] {
            assert_eq!(of_file(&file("/usr/bin/db", reason, 8 << 20)), None, "{reason}");
        }
        assert_eq!(of_file(&file("/usr/bin/db", "in-use", 1 << 20)), None);
        assert_eq!(of_file(&file("/usr/bin/d\u{1b}[2Jb", "in-use", 8 << 20)), None);
    }
}
