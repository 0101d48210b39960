// SPDX-License-Identifier: Apache-2.0
//! Tests on plain files that look like the kernel's.

use super::*;
use hugelift_core::heat::data::Bytes;
use hugelift_core::smaps::parse_smaps;
use hugelift_core::snapshot::Snapshot;
use hugelift_linux::proc::snapshot;
use std::collections::BTreeMap;

const HERE: u64 = 1 << 63;
const LRU: u64 = 1 << 5;
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
/// Where the mapping lies: low, so that the files are short.
const START: u64 = 4 << 20;

fn file(words: &BTreeMap<u64, u64>) -> File {
    let file = tempfile::tempfile().expect("a file");
    for (number, word) in words {
        file.write_all_at(&word.to_ne_bytes(), number * 8).expect("a write");
    }
    file
}

fn areas(pages: u64) -> Areas {
    let (start, end) = (START, START + pages * base_page().bytes());
    let text = format!("{start:x}-{end:x} rw-s 0 0:1 9 /memfd:x (deleted)\nRss: 4 kB\n");
    let usage = parse_smaps(text.as_bytes()).expect("smaps");
    let machine = snapshot::live(None, 0).expect("this process").machine;
    Areas::new(&Snapshot::new(vec![], vec![usage[0].mapping.clone()], machine), &usage)
}

/// Returns the kernel's files for pages with these entries, whose frames have these flags.
fn files(entries: &[u64], flags: &[(u64, u64)]) -> Files {
    let first = START / base_page().bytes();
    let bitmap = file(&BTreeMap::new());
    // The machine has some frames more than 320: those are in a word that the kernel does not tell.
    bitmap.set_len(5 * 8).expect("its size");
    Files {
        pagemap: file(&(first..).zip(entries.iter().copied()).collect()),
        flags: file(&flags.iter().copied().collect()),
        bitmap,
    }
}

#[test]
fn issue_31_2_what_is_not_idle_any_more_was_touched() {
    let page = base_page().bytes();
    // Two small pages, a folio of four of which the process maps the last three, one page that cannot be marked, and
    // one that is not there.
    let entries = [HERE | 100, HERE | 70, HERE | 201, HERE | 202, HERE | 203, HERE | 300, 0];
    let folio = [(200, HEAD | LRU), (201, TAIL), (202, TAIL), (203, TAIL)];
    let flags = [&[(70, LRU), (100, LRU), (300, 0)], &folio[..]].concat();
    let areas = areas(entries.len() as u64);
    let marked = Marked::start(files(&entries, &flags), &areas, PageSize::MB2).expect("marked");
    assert_eq!(marked.marked, [70, 100, 200]);
    let set = |frame: u64| {
        let word = values(&marked.files.bitmap, &[frame / 64]).expect("a word")[0];
        word & 1 << (frame % 64) != 0
    };
    assert!(set(70) && set(100) && set(200) && !set(201) && !set(300) && !set(71));
    // The process touches the page of frame 70 and the folio, and a page appears.
    let clear = |frame: u64| {
        let word = values(&marked.files.bitmap, &[frame / 64]).expect("a word")[0] & !(1 << (frame % 64));
        marked.files.bitmap.write_all_at(&word.to_ne_bytes(), frame / 64 * 8).expect("a write");
    };
    clear(70);
    clear(200);
    marked.files.pagemap.write_all_at(&(HERE | 9).to_ne_bytes(), (START / page + 6) * 8).expect("a write");
    let data = marked.finish(&areas).expect("data");
    let want = Bytes { mapped: 7 * page, resident: 7 * page, watched: 6 * page, touched: 5 * page };
    assert_eq!(data.bytes, want);
    assert_eq!(data.spans.map(|spans| (spans.resident, spans.touched)), Some((1, 1)));
}

#[test]
fn issue_31_2_the_last_word_of_the_bitmap_is_not_told() {
    let areas = areas(2);
    let found = Marked::start(files(&[HERE | 5, HERE | 330], &[(5, LRU), (330, LRU)]), &areas, PageSize::MB2);
    let marked = found.expect("marked");
    assert_eq!(marked.marked, [5]);
    let bytes = marked.finish(&areas).expect("data").bytes;
    assert_eq!((bytes.watched, bytes.touched), (base_page().bytes(), 0));
}

#[test]
fn issue_31_2_frames_that_are_hidden() {
    let error = Marked::start(files(&[HERE, HERE], &[]), &areas(2), PageSize::MB2).expect_err("hidden");
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    let error = Marked::start(files(&[0, 0], &[]), &areas(2), PageSize::MB2).expect_err("no data");
    assert!(matches!(error, Refused::NoData), "{error}");
    // A list that is cut, and one that is empty once the process has ended.
    let marked = Marked::start(files(&[HERE | 3], &[(3, LRU)]), &areas(9), PageSize::MB2).expect("marked");
    marked.files.pagemap.set_len(0).expect("a cut");
    assert!(marked.finish(&areas(9)).is_err());
}

#[test]
fn issue_31_2_wild_frames_do_no_harm() {
    let wild = (1 << 55) - 1;
    let areas = areas(2);
    let found = Marked::start(files(&[HERE | wild, HERE | 5], &[(5, LRU | TAIL)]), &areas, PageSize::MB2);
    let data = found.expect("marked").finish(&areas).expect("data");
    assert_eq!(data.bytes.watched, base_page().bytes());
}

#[test]
fn issue_31_2_runs_are_cut() {
    let mut all = Vec::new();
    let numbers = (0..RUN + 3).chain([RUN + 9, u64::MAX]);
    runs(numbers, |first, count| {
        all.push((first, count));
        Ok(())
    })
    .expect("no error");
    assert_eq!(all, [(0, RUN), (RUN, 3), (RUN + 9, 1), (u64::MAX, 1)]);
}
