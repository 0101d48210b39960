// SPDX-License-Identifier: Apache-2.0
//! Tests pictures in a real browser: they show what the JSON contains, load nothing, cause no error, and
//! are not empty.

use crate::common::browser::{Page, Scheme, VIEWS, browser};
use crate::common::{Cmd, HUGELIFT, Held, fat};
use crate::{need, skip};
use hugelift_core::addr::human_bytes;
use serde_json::Value;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn inspect<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(HUGELIFT).arg("inspect").args(args).output().expect("hugelift runs")
}

/// Returns the file with the picture of a target, and the JSON that was printed with it.
fn picture(target: impl AsRef<OsStr>, dir: &Path) -> (PathBuf, Value) {
    let file = dir.join("picture.html");
    let out = inspect([OsStr::new("--json"), OsStr::new("--html"), file.as_os_str(), target.as_ref()]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    (file, serde_json::from_slice(&out.stdout).expect("JSON"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {value}"))
}

/// Checks what all pictures have in common, in one window.
fn check(page: &mut Page, file: &Path, report: &Value, view: (u32, Scheme)) {
    page.view(file, view);
    assert_eq!(page.problems(), [""; 0], "{view:?}");
    let embedded = page.evaluate("JSON.parse(document.getElementById('report').textContent)");
    assert_eq!(&embedded, report);
    let text = page.text();
    for (part, total) in report["totals"].as_object().expect("totals") {
        let [huge, bytes] = ["huge_bytes", "bytes"].map(|name| human_bytes(number(total, name)));
        assert!(text.contains(&format!("{part}\n{huge} huge of {bytes}")), "{part}, {huge}, {bytes}: {text}");
    }
    page.check_layout();
    page.save(report["pid"].as_u64().map_or("inspect-file", |_| "inspect-process"), view);
    let shot = page.screenshot();
    let background = shot.background();
    let dark = background.iter().all(|c| *c < 64);
    assert_eq!(dark, view.1 == Scheme::Dark, "{background:?}");
    assert!(
        shot.colours() > 20 && (0.2..0.97).contains(&shot.share(background)),
        "{}",
        shot.share(background)
    );
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)");
    page.check_layout();
}

/// Returns the start, the end and the description of each cell of the page.
fn cells(page: &mut Page) -> Vec<(u64, u64, String)> {
    let titles =
        page.evaluate("[...document.querySelectorAll('.grid-of-pages rect title')].map(t => t.textContent)");
    let cell = |title: &Value| {
        let (range, what) = title.as_str().expect("text").split_once('\n').expect("two lines");
        let (start, end) = range.split(' ').next().expect("a range").split_once('-').expect("a range");
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
        (hex(start), hex(end), what.to_string())
    };
    titles.as_array().expect("a list").iter().map(cell).collect()
}

/// Checks that cells cover each part once, that none is larger than a huge page, and that the huge ones add
/// up.
fn cells_agree(page: &mut Page, report: &Value) {
    let cells = cells(page);
    let size = number(report, "page_size");
    for object in report["objects"].as_array().expect("objects") {
        for part in object["parts"].as_array().expect("parts") {
            let (start, end) = (number(part, "start"), number(part, "end"));
            let inside = || cells.iter().filter(|(a, b, _)| start <= *a && *b <= end);
            let mut at = start;
            for (a, b, what) in inside() {
                assert_eq!(*a, at, "{part}");
                assert!(b > a && a / size == (b - 1) / size, "{a:x}-{b:x}");
                assert!(what.starts_with(part["part"].as_str().expect("name")), "{what}: {part}");
                at = *b;
            }
            assert_eq!(at, end, "{part}");
            let huge: u64 =
                inside().filter(|(_, _, what)| what.contains(", huge")).map(|(a, b, _)| b - a).sum();
            let partly: u64 =
                inside().filter(|(_, _, what)| what.contains("partly")).map(|(a, b, _)| b - a).sum();
            let reported = number(part, "huge_bytes");
            assert!(huge <= reported && reported <= huge + partly, "{huge} + {partly}: {part}");
            for skip in part["skips"].as_array().expect("skips") {
                let detail = skip["detail"].as_str().expect("words");
                assert!(
                    inside().any(|(_, _, what)| what.contains(detail) || what.contains("partly")),
                    "{detail}"
                );
            }
        }
    }
}

#[test]
fn a_lifted_process() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let program = fat("hold").build();
    let held = Held::start(&Cmd::new([&program]), Some(&["--backing", "thp"]), &program);
    let dir = tempfile::tempdir().unwrap();
    let (file, report) = picture(held.pid().to_string(), dir.path());
    assert!(number(&report["totals"]["text"], "huge_bytes") > 0, "{report}");
    let mut page = Page::blank();
    for view in VIEWS {
        check(&mut page, &file, &report, view);
        cells_agree(&mut page, &report);
        let text = page.text();
        assert!(text.contains(&format!("process {}", held.pid())) && text.contains("huge: thp"), "{text}");
    }
}

#[test]
fn a_large_program_that_does_not_run() {
    need!("clang-19");
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, report) = picture("clang-19", dir.path());
    let mut page = Page::blank();
    for view in VIEWS {
        check(&mut page, &file, &report, view);
        cells_agree(&mut page, &report);
        assert!(page.text().contains("addresses are assumed"));
    }
}

/// In a narrow window the reasons are beside nothing that has to be scrolled.
#[test]
fn issue_29_b10_the_reasons_are_in_sight() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = picture(fat("hold").build(), dir.path());
    let mut page = Page::blank();
    for view in VIEWS {
        page.view(&file, view);
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)");
        let cut = "[...document.querySelectorAll('.scroll td:last-child')].filter(e => {
            const r = e.getBoundingClientRect();
            return e.textContent.trim() && (r.left < 0 || r.right > innerWidth || r.width < 200);
          }).map(e => e.textContent)";
        assert_eq!(page.evaluate(cut), serde_json::json!([]), "{view:?}");
        assert!(
            page.evaluate("document.querySelectorAll('.scroll td:last-child').length").as_u64() > Some(0)
        );
        page.check_layout();
    }
}

#[test]
fn mouse_and_keys_show_what_a_cell_is() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = picture(fat("hold").build(), dir.path());
    let mut page = Page::open(&file, Scheme::Light);
    let tooltip = "document.getElementById('tooltip').checkVisibility() ? document.getElementById('tooltip').textContent : ''";
    assert_eq!(page.evaluate(tooltip), "");
    page.point_at(".grid-of-pages rect.c-could-hollow-plain");
    let shown = page.evaluate(tooltip);
    let shown = shown.as_str().expect("text");
    assert!(shown.starts_with("0x") && shown.contains("could be lifted\nhint: hugelift run"), "{shown}");
    // The Tab key reaches the first cell of a grid; arrow keys reach the others.
    page.evaluate("document.querySelector('.legend li:last-child button').focus()");
    page.press("Tab");
    let first = page.evaluate(tooltip);
    page.press("ArrowRight");
    let second = page.evaluate(tooltip);
    assert!(first != second && second.as_str().is_some_and(|t| t.starts_with("0x")), "{first} {second}");
    page.press("ArrowLeft");
    assert_eq!(page.evaluate(tooltip), first);
    // An entry of the legend dims all cells but its own.
    let dimmed = "document.querySelectorAll('.picked rect.other').length";
    assert_eq!(page.evaluate(dimmed), 0);
    page.evaluate("document.querySelector('.legend button').click()");
    assert!(page.evaluate(dimmed).as_u64().is_some_and(|n| n > 0));
    page.evaluate("document.querySelector('.legend button').click()");
    assert_eq!((page.evaluate(dimmed), page.problems()), (0.into(), vec![]));
}

/// A name with markup is shown as text.
#[test]
fn a_hostile_name() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "<img src=x onerror=document.title='!'>&amp;\"'";
    let program = dir.path().join(name);
    crate::common::cache::copy(fat("hold").build(), &program);
    let (file, report) = picture(&program, dir.path());
    let mut page = Page::blank();
    check(&mut page, &file, &report, VIEWS[0]);
    assert!(page.text().contains(name), "{}", page.text());
    assert_eq!(page.evaluate("document.images.length + document.querySelectorAll('script').length"), 2);
    assert_eq!(page.evaluate("document.title"), format!("{name}: its huge pages"));
}

/// Tests the check itself: it finds a page's errors, loads and overlapping texts.
#[test]
fn a_bad_page_is_found_out() {
    if browser().is_none() {
        skip!("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.html");
    let body = "<p style='position:absolute;top:0'>one</p><p style='position:absolute;top:2px'>two</p>\
                <img src='http://127.0.0.1:9/x.png'><script>console.error('bad'); nothing();</script>";
    std::fs::write(&file, body).unwrap();
    let mut page = Page::open(&file, Scheme::Light);
    let problems = page.problems().join("\n");
    for part in ["console: ", "exception: ", "loads \"http://127.0.0.1:9/x.png\""] {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    assert_eq!(page.overlaps(), ["'one' and 'two'"]);
    // And what cannot be read: too small, too wide, outside of its picture.
    for bad in [
        "<main><p style='font-size:8px'>small</p></main>",
        "<main><pre style='width:500px'>wide</pre></main>",
        "<main><p style='overflow:hidden;white-space:nowrap;width:50px'>cut off at its end</p></main>",
        "<main><svg role='img' viewBox='0 0 100 20' width='100'><text x='50' y='15'>far too long</text></svg></main>",
        "<main><svg role='img' viewBox='0 0 800 20' style='width:100%'><text x='50' y='15'>tiny</text></svg></main>",
    ] {
        std::fs::write(&file, format!("<!DOCTYPE html>{bad}")).unwrap();
        let mut page = Page::open_at(&file, (420, Scheme::Light));
        let found = catch_unwind(AssertUnwindSafe(|| page.check_layout()));
        assert!(found.is_err(), "{bad}");
    }
    std::fs::write(&file, "").unwrap();
    let shot = Page::open(&file, Scheme::Light).screenshot();
    assert_eq!((shot.colours(), shot.share(shot.background())), (1, 1.0));
}

#[test]
fn where_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    // A directory is not replaced, and a file that cannot be written is named.
    for (file, what) in
        [(dir.path().to_path_buf(), "directory"), (dir.path().join("no/such.html"), "No such file")]
    {
        let out = inspect([OsStr::new("--html"), file.as_os_str(), own.as_os_str()]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), said.lines().count()), (Some(125), 1), "{said}");
        assert!(said.contains(&*file.to_string_lossy()) && said.contains(what), "{said}");
        assert!(out.stdout.is_empty());
    }
    // The text is the same as without --html; an old file is replaced, and no other file is left.
    let file = dir.path().join("page.html");
    std::fs::write(&file, "old").unwrap();
    let out = inspect([OsStr::new("--html"), file.as_os_str(), own.as_os_str()]);
    assert_eq!(out.stdout, inspect([own.as_os_str()]).stdout);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // With `-` the page, and nothing else, goes to standard output.
    let out = inspect([OsStr::new("--json"), OsStr::new("--html"), OsStr::new("-"), own.as_os_str()]);
    assert!(out.status.success());
    assert_eq!(String::from_utf8(out.stdout).unwrap(), page);
}
