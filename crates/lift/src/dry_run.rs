// SPDX-License-Identifier: Apache-2.0
//! `hugelift run --dry-run`: what would be lifted, onto what; nothing is started.

use crate::Failure;
use crate::allocator::allocator_settings;
use crate::options::{StartOptions, Verbosity};
use crate::report::copied_later;
use crate::text::{Style, text};
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::malloc::Setting;
use hugelift_core::nothing::why_nothing;
use hugelift_core::plan::{Plan, Span, plan};
use hugelift_core::policy::{Backing, PageChoice, Policy};
use hugelift_core::printable::Escape;
use hugelift_core::report::Report;
use hugelift_core::snapshot::{Object, Snapshot};
use hugelift_linux::elf::file_snapshot::of_file;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::terminal;
use hugelift_linux::machine::{folios, thp_page};
use hugelift_pages::base::{Wanted, of_run};
use hugelift_pages::pagecache::{self, Search};
use hugelift_pages::store;
use std::fmt::Write as _;
use std::path::Path;

/// Prints the plan for the program at `path`.
///
/// # Errors
/// The program cannot be read, or standard output cannot be written.
pub(crate) fn dry_run(path: &Path, policy: &Policy, options: &StartOptions) -> Result<(), Failure> {
    let wanted = Wanted { policy, huge: thp_page() };
    let mut program = of_file(path, of_run(wanted)).map_err(|error| error.to_string())?;
    for missing in &program.missing {
        say(&format!("{}: the loader would not find {missing}; see LD_LIBRARY_PATH", path.escaped()));
    }
    if policy.page != PageChoice::Usual {
        program.snapshot.machine.folios = folios();
    }
    if policy.backings.contains(&Backing::Pagecache) {
        let takes = |object: &Object| policy.objects.takes(object);
        pagecache::find(None, &mut program.snapshot, &policy.parts, takes, Search::Whole);
    }
    if policy.backings.contains(&Backing::Shared) {
        program.snapshot.stored = store::preview(&program.snapshot, policy);
    }
    let plan = plan(&program.snapshot, policy);
    let mut report = Report::new(&program.snapshot, None, &plan, None);
    report.assumed_addresses = true;
    let page = policy.page.named().or(program.snapshot.machine.thp_page).unwrap_or(PageSize::MB2);
    let style = Style {
        width: terminal::width().unwrap_or(80),
        verbose: options.lift.verbosity >= Verbosity::Summary,
    };
    let later = copied_later(&plan, options.lift.copies_hot().is_some())
        .map_or(String::new(), |line| format!("\n{line}\n"));
    let asks = match allocator_settings(options.malloc, path, policy) {
        Ok(settings) => settings.iter().map(asks).collect(),
        Err(why) => format!("\n--malloc: {why}\n"),
    };
    let shown = text(&report, &style) + &spans(&program.snapshot, &plan, page) + &later + &asks;
    Ok(console::print(&shown)?)
}

fn spans(snapshot: &Snapshot, plan: &Plan, page: PageSize) -> String {
    let mut out = match plan.spans.len() {
        0 => format!("\nplan: nothing to lift: {}\n", why_nothing(snapshot, plan, page)),
        _ => "\nplan:\n".to_string(),
    };
    for span in &plan.spans {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  lift {}", what(snapshot, span));
    }
    out
}

/// Returns text such as "24 MB of text of /usr/bin/node on shared pages of 2 MB, else thp pages of 2 MB".
pub(crate) fn what(snapshot: &Snapshot, span: &Span) -> String {
    let path = snapshot.objects.get(span.object).map(|object| object.path.escaped().to_string());
    let (size, path) = (human_bytes(span.range.len()), path.unwrap_or_default());
    format!("{size} of {} of {path} on {}", span.part, ways(span))
}

fn asks(Setting { name, value }: &Setting) -> String {
    format!("\n{name}={value} is set: its allocator asks for huge pages as it takes memory\n")
}

/// Returns text such as "hugetlb pages of 2 MB, else thp pages of 2 MB".
fn ways(span: &Span) -> String {
    let ways: Vec<String> =
        span.attempts.iter().map(|a| format!("{} pages of {}", a.backing, a.page)).collect();
    ways.join(", else ")
}
