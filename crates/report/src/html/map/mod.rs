// SPDX-License-Identifier: Apache-2.0
//! A [`Report`] as a page: the address space of each object as a grid of huge pages, coloured by what
//! backs them, or why they are not huge.

mod appearance;
mod grid;
mod hot;
mod tile;

use crate::html::page::{escape, json, page, table};
use appearance::Appearance;
use hugelift_core::addr::{PageSize, human_bytes};
use hugelift_core::heat::{Heat, ObjectHeat};
use hugelift_core::printable::Escape;
use hugelift_core::report::{ObjectReport, PartReport, Report, SkipReport, Total};
use hugelift_core::snapshot::Part;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tile::Tile;

/// Returns the report as one HTML document. It holds the report as JSON, in the element `report`.
///
/// # Errors
/// The report cannot be written as JSON.
pub fn document(report: &Report) -> serde_json::Result<String> {
    let huge_page = PageSize::new(report.page_size).unwrap_or(PageSize::MB2);
    let objects: Vec<Picture> =
        report.objects.iter().map(|o| Picture::new(o, report.heat.as_ref(), huge_page)).collect();
    let mut appearances: BTreeMap<&Appearance, u64> = BTreeMap::new();
    for (_, tile) in objects.iter().flat_map(|o| &o.tiles) {
        *appearances.entry(&tile.appearance).or_default() += tile.range.len();
    }
    let styles: BTreeMap<String, (String, String)> =
        appearances.keys().map(|l| (l.class(), l.style())).collect();
    let (rules, patterns): (Vec<String>, Vec<String>) = styles.into_values().unzip();

    let mut body = summary(report);
    // Has no size: it only holds the patterns that the others refer to.
    let _ = writeln!(
        body,
        "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>{}</defs></svg>",
        patterns.concat()
    );
    legend(&mut body, &appearances, report);
    body += &hot::summary(report.heat.as_ref());
    let (liftable, others): (Vec<&Picture>, Vec<&Picture>) = objects.iter().partition(|o| o.is_liftable());
    liftable.iter().for_each(|object| object.draw(&mut body));
    if !liftable.is_empty() {
        let _ = writeln!(body, "<h2>Figures</h2>\n{}", figures(&liftable));
    }
    if !others.is_empty() {
        let objects = if others.len() == 1 { "object" } else { "objects" };
        let _ = writeln!(body, "<details><summary>{} {objects} with nothing to lift</summary>", others.len());
        others.iter().for_each(|object| object.draw(&mut body));
        let _ = writeln!(body, "{}</details>", figures(&others));
    }
    body += "<output id=\"tooltip\" class=\"panel\" hidden></output>\n";
    body += &json("report", report)?;
    Ok(page(
        &title(report),
        &body,
        &(include_str!("map.css").to_string() + &rules.concat()),
        include_str!("map.js"),
    ))
}

fn name(object: &ObjectReport) -> String {
    object.path.file_name().unwrap_or(object.path.as_os_str()).escaped().to_string()
}

fn title(report: &Report) -> String {
    let program = report.objects.first().map_or("a process".into(), name);
    match report.pid {
        Some(pid) => format!("{program}, process {pid}: its huge pages"),
        None => format!("{program}: its huge pages"),
    }
}

/// Returns how much of each part is huge, of what could be.
fn summary(report: &Report) -> String {
    let mut out = String::new();
    if report.assumed_addresses {
        out += "<p>The program does not run: its addresses are assumed; a run may load it elsewhere, with other edges.</p>\n";
    }
    out += "<div class=\"totals\">\n";
    for (part, total) in &report.totals {
        let _ = writeln!(out, "{}", meter(*part, total));
    }
    out + "</div>\n"
}

/// Returns the sums of a part, and a bar, broad for what is huge, less for what is liftable, thin for the rest.
fn meter(part: Part, total: &Total) -> String {
    let share = |bytes: u64| 100.0 * bytes as f64 / total.bytes.max(1) as f64;
    let percent = match total.liftable_bytes {
        0 => "nothing to lift".to_string(),
        all => format!(
            "{} liftable: {} % huge",
            human_bytes(all),
            u128::from(total.huge_bytes) * 100 / u128::from(all)
        ),
    };
    format!(
        "<div class=\"panel\"><div class=\"part\">{part}</div>\
         <div class=\"big\">{huge} <span class=\"muted\">huge of {bytes}</span></div>\
         <svg viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" height=\"8\" width=\"100%\" role=\"img\" \
         aria-label=\"{huge} of {bytes} huge, {liftable} liftable\">\
         <rect class=\"c-left\" y=\"2\" width=\"100\" height=\"2\"/>\
         <rect class=\"c-could\" y=\"1\" width=\"{:.2}\" height=\"4\"/>\
         <rect class=\"c-huge\" width=\"{:.2}\" height=\"6\"/></svg>\
         <div class=\"muted\">{percent}</div></div>",
        share(total.liftable_bytes.max(total.huge_bytes)),
        share(total.huge_bytes),
        huge = human_bytes(total.huge_bytes),
        bytes = human_bytes(total.bytes),
        liftable = human_bytes(total.liftable_bytes),
    )
}

fn legend(out: &mut String, appearances: &BTreeMap<&Appearance, u64>, report: &Report) {
    let parts: Vec<String> = report
        .totals
        .keys()
        .map(|part| {
            format!(
                "<span class=\"key\"><svg viewBox=\"0 0 26 4\" width=\"26\" height=\"4\" aria-hidden=\"true\">\
                 <path class=\"p-{part}\" d=\"M0 2h26\"/></svg>{part}</span>"
            )
        })
        .collect();
    let _ = writeln!(
        out,
        "<h2>Address space</h2>\n<p class=\"muted\">Each cell is a huge page of {}; parts that share one take their \
         shares of it. The line under a cell shows the part: {}. Point at a cell, or move with the arrow keys, to \
         read what it is.</p>\n<ul class=\"legend\">",
        human_bytes(report.page_size),
        parts.join(" ")
    );
    // What looks the same has one entry.
    let mut entries: Vec<(String, Vec<&str>, u64)> = Vec::new();
    for (appearance, bytes) in appearances {
        match entries.iter_mut().find(|(class, ..)| *class == appearance.class()) {
            Some((_, labels, sum)) => {
                labels.push(&appearance.label);
                *sum += bytes;
            }
            None => entries.push((appearance.class(), vec![&appearance.label], *bytes)),
        }
    }
    for (class, labels, bytes) in entries {
        let _ = writeln!(
            out,
            "<li><button type=\"button\" data-class=\"{class}\" aria-pressed=\"false\">\
             <svg viewBox=\"0 0 20 20\" width=\"20\" height=\"20\" aria-hidden=\"true\">\
             <rect class=\"{class}\" x=\"1\" y=\"1\" width=\"18\" height=\"18\"/></svg>\
             {} <span class=\"muted\">{}</span></button></li>",
            escape(&labels.join(", ")),
            human_bytes(bytes)
        );
    }
    *out += "</ul>\n";
}

/// An object and its tiles.
struct Picture<'a> {
    object: &'a ObjectReport,
    heat: Option<&'a ObjectHeat>,
    tiles: Vec<(Part, Tile)>,
    page: PageSize,
}

impl<'a> Picture<'a> {
    fn new(object: &'a ObjectReport, heat: Option<&'a Heat>, page: PageSize) -> Picture<'a> {
        let tiles_of = |part: &PartReport| {
            tile::tiles(part, page).into_iter().map(|t| (part.part, t)).collect::<Vec<_>>()
        };
        let mut tiles: Vec<(Part, Tile)> = object.parts.iter().flat_map(tiles_of).collect();
        tiles.sort_by_key(|(_, tile)| tile.range.start);
        let heat = heat.and_then(|heat| heat.objects.iter().find(|hot| hot.path == object.path));
        Picture { object, heat, tiles, page }
    }

    /// Whether something of it is huge or could be.
    fn is_liftable(&self) -> bool {
        self.object.parts.iter().any(|p| p.huge_bytes > 0 || p.liftable_bytes > 0)
    }

    fn draw(&self, out: &mut String) {
        let sum = |f: fn(&PartReport) -> u64| human_bytes(self.object.parts.iter().map(f).sum());
        let (grid, unit) = grid::grid(self.object, self.heat, &self.tiles, self.page.bytes());
        let scale = if unit > self.page.bytes() {
            format!("; each cell {} pages: {}", unit / self.page.bytes(), human_bytes(unit))
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "<section>\n<h3>{}</h3>\n<p class=\"muted\"><span class=\"mono\">{}</span><br>\
             {}, liftable {}, huge {}{scale}{}</p>\n<div class=\"grid-of-pages\">{grid}</div>\n</section>",
            escape(&name(self.object)),
            escape(&self.object.path.to_string()),
            sum(|p| p.bytes),
            sum(|p| p.liftable_bytes),
            sum(|p| p.huge_bytes),
            self.heat.map(|heat| format!("<br>{}", heat.says())).unwrap_or_default(),
        );
    }
}

/// Returns a table of all parts of these objects.
fn figures(objects: &[&Picture]) -> String {
    let columns = [
        ("Object", false),
        ("Part", false),
        ("Address", false),
        ("Size", true),
        ("Liftable", true),
        ("Huge", true),
        ("Backing", false),
        ("Not huge, and why", false),
    ];
    let row = |object: &ObjectReport, part: &PartReport| {
        vec![
            format!("<span title=\"{}\">{}</span>", escape(&object.path.to_string()), escape(&name(object))),
            part.part.to_string(),
            format!("<code>{:#x}</code>", part.start),
            human_bytes(part.bytes),
            human_bytes(part.liftable_bytes),
            human_bytes(part.huge_bytes),
            part.backing.map_or("-".into(), |b| b.to_string()),
            part.skips.iter().map(reason).collect::<Vec<_>>().join("<br>"),
        ]
    };
    let objects = objects.iter().map(|picture| picture.object);
    let rows: Vec<_> = objects.flat_map(|o| o.parts.iter().map(move |p| row(o, p))).collect();
    table("Huge is what /proc/PID/smaps shows to be. 1 MB is 1024 kB, 1 kB is 1024 bytes.", &columns, &rows)
}

fn reason(skip: &SkipReport) -> String {
    let hint = skip.hint.as_ref().map(|h| format!("<br><code>{}</code>", escape(h)));
    format!("{}: {}{}", human_bytes(skip.bytes), escape(&skip.detail), hint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::geometry;
    use hugelift_core::report::example::report;
    use proptest::prelude::*;

    #[test]
    fn any_range_makes_a_picture_of_moderate_size() {
        const HUGE: u64 = 2 << 20;
        for (parts, page) in [
            (vec![(0, u64::MAX)], HUGE),
            (vec![(0, 1), (u64::MAX - 1, u64::MAX)], HUGE),
            (vec![(0, HUGE), (HUGE, 1 << 47)], 0),
            (vec![(5, 6), (6, 4096), (1 << 40, (1 << 40) + 5000 * HUGE)], HUGE),
            (vec![], 1 << 30),
        ] {
            let page = document(&report(&parts, page)).unwrap();
            assert!(page.len() < 2 << 20, "{parts:x?}: {} bytes", page.len());
            geometry::check(&page);
            let cells = page.matches("</title></rect>").count();
            assert!(cells >= parts.len() && cells <= 4096 + parts.len(), "{parts:x?}: {cells}");
            assert!(!page.contains("<x>") && !page.contains("<of any"), "{parts:x?}");
        }
    }

    #[test]
    fn gaps_are_folded() {
        const HUGE: u64 = 2 << 20;
        let page = document(&report(&[(0, HUGE), (1 << 40, (1 << 40) + HUGE)], HUGE)).unwrap();
        assert!(page.contains(">1023.9 GB of other addresses</p>"), "{page}");
        let page = document(&report(&[(0, HUGE), (2 * HUGE, 3 * HUGE)], HUGE)).unwrap();
        assert!(!page.contains("of other addresses"), "{page}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_names_of_parts_do_not_collide(sizes in prop::collection::vec((1u64..9 << 20, 0u64..64 << 20), Part::ALL.len())) {
            let mut at = 4u64 << 20;
            let mut ranges = Vec::new();
            for (bytes, gap) in sizes {
                ranges.push((at, at + bytes));
                at += bytes + gap / 4096 * if gap % 2 == 0 { 1 } else { 4096 };
            }
            let mut report = report(&ranges, 2 << 20);
            for (part, name) in report.objects[0].parts.iter_mut().zip(Part::ALL) {
                part.part = name;
            }
            let page = document(&report).unwrap();
            geometry::check(&page);
            // Each part is named where it begins.
            for part in Part::ALL {
                let named = page.matches("<text class=\"part\" x=").count();
                prop_assert!(named >= Part::ALL.len() && page.contains(&format!(">{part}</text>")), "{} {}", part, page);
            }
        }
    }
}
