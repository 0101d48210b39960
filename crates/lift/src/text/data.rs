// SPDX-License-Identifier: Apache-2.0
//! The data in use as text: how much, where, by which way, and what that cannot see.

use hugelift_core::heat::HOT_PERCENT;
use hugelift_core::heat::data::{DataInUse, PlaceInUse, Spans};
use hugelift_core::printable::{printable, thousands};
use hugelift_core::table::{LEFT, Table};
use std::fmt::Write as _;

/// Returns what was found: each line ends with a newline. Places with less than one percent of the resident data are
/// counted only, unless `verbose`.
pub fn data(data: &DataInUse, verbose: bool) -> String {
    let mut out = format!("data in use: {}\n", data.says());
    if data.method.is_none() {
        for refusal in &data.refusals {
            let _ = writeln!(out, "  {}: {}", refusal.method, printable(&refusal.why));
        }
        return out;
    }
    let mut table = Table::new([LEFT, LEFT, LEFT]).indented(2);
    let is_shown = |place: &&PlaceInUse| {
        verbose || place.bytes.resident.saturating_mul(100) >= data.bytes.resident && place.bytes.resident > 0
    };
    for place in data.places.iter().filter(is_shown) {
        let spans = place.spans.map_or(String::new(), |spans| of_spans(data, spans));
        table.row([place.name(), data.says_bytes(place.bytes), spans]);
    }
    out += &table.to_string();
    let folded = data.places.iter().filter(|place| !is_shown(place)).count();
    if folded > 0 {
        let _ = writeln!(out, "  {folded} more with less than 1 % each");
    }
    for note in notes(data) {
        let _ = writeln!(out, "  {note}");
    }
    out
}

/// Returns "17 spans of 2 MB of 150, 99 % of it in 16".
fn of_spans(data: &DataInUse, spans: Spans) -> String {
    let mut text = data.says_spans(spans);
    if spans.hot < spans.touched {
        let what = if data.samples.is_some() { "the samples" } else { "it" };
        let _ = write!(text, ", {HOT_PERCENT} % of {what} in {}", thousands(spans.hot));
    }
    text
}

/// Returns what limits the figures.
fn notes(data: &DataInUse) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(interval) = data.interval_ms {
        notes.push(format!(
            "bytes are those touched within {interval} ms, on average; spans are those touched at any time"
        ));
    }
    if let Some(samples) = data.samples {
        notes.push(format!("{} loads and stores were sampled in its data", thousands(samples)));
    }
    let unwatched = data.bytes.resident.saturating_sub(data.bytes.watched);
    if unwatched > 0 {
        notes.push(format!("{} could not be watched", hugelift_core::addr::human_bytes(unwatched)));
    }
    notes.extend(data.cannot_see.iter().map(|line| line.to_string()));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::heat::data::{Bytes, Kind, Method, Refusal};

    const MB: u64 = 1 << 20;

    fn place(kind: Kind, resident: u64, touched: u64) -> PlaceInUse {
        let bytes = Bytes { mapped: resident, resident, watched: resident, touched };
        let spans =
            Some(Spans { resident: resident.div_ceil(2 * MB), touched: touched.div_ceil(2 * MB), hot: 1 });
        PlaceInUse { kind, path: None, bytes, spans }
    }

    #[test]
    fn issue_31_2_places_and_what_is_not_seen() {
        let method = Method::Damon;
        let seen = DataInUse {
            milliseconds: 5000,
            method: Some(method),
            cannot_see: method.cannot_see().to_vec(),
            interval_ms: Some(100),
            bytes: Bytes { mapped: 400 * MB, resident: 302 * MB, watched: 300 * MB, touched: 34 * MB },
            span_size: Some(2 * MB),
            places: vec![place(Kind::Anon, 300 * MB, 34 * MB), place(Kind::Bss, MB, 0)],
            ..DataInUse::unseen(vec![])
        };
        let shown = data(&seen, false);
        for want in [
            "data in use: about 34 MB of 302 MB, by DAMON in 5.0 s\n",
            "  anon  about 34 MB of 300 MB  17 spans of 2 MB of 150, 99 % of it in 1\n",
            "  1 more with less than 1 % each\n",
            "  bytes are those touched within 100 ms, on average",
            "  2 MB could not be watched\n",
            "stays in a TLB",
        ] {
            assert!(shown.contains(want), "{want}\n{shown}");
        }
        assert!(data(&seen, true).contains("bss   0 B of 1 MB"), "{}", data(&seen, true));
    }

    #[test]
    fn issue_31_2_nothing_can_be_seen() {
        let why = "this kernel has none\x1b[31m".to_string();
        let shown = data(&DataInUse::unseen(vec![Refusal { method: Method::IdlePageTracking, why }]), false);
        assert!(
            shown.starts_with("data in use: cannot be seen here\n  idle page tracking: this kernel has none")
        );
        assert!(!shown.contains('\x1b') && shown.lines().count() == 2, "{shown:?}");
    }
}
