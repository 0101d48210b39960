// SPDX-License-Identifier: Apache-2.0
//! What the measurements mean: claims, notes and advice.

use super::figures::{NS, latencies, middle};
use super::tables::{is_narrow, largest, of_side, over_saves, runs};
use crate::cow::case::{Case, Pattern};
use crate::cow::measured::Measured;
use crate::cow::ratios::{Ratio, SOURCE_WHOLE};
use crate::cow::redis::{Rest, Save, Side};
use crate::cow::write::Forked;
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::unit::Unit;
use hugelift_core::addr::human_bytes;
use hugelift_linux::machine::tree::Tree;
use hugelift_linux::machine::{base_page, thp_page};
use hugelift_measure::stats::median;

/// Returns how many bytes one write to a transparent huge page has copied.
pub(super) fn thp_copies(measured: &Measured) -> Option<u64> {
    let cases = measured.cases.iter();
    let one = cases.filter(|(case, _)| case.pages == Pages::Thp && case.pattern == Pattern::OnePerHuge);
    let (case, runs) = one.max_by_key(|(case, _)| case.huge_pages)?;
    let all = case.huge_pages * thp_page()?.bytes();
    // Where the kernel gave small pages, there was nothing to split.
    let copied = middle(runs, |run| (run.huge[0] == all).then_some(run.copied as f64))?;
    let copied = copied / case.huge_pages as f64;
    Some(copied.round() as u64)
}

pub(super) fn kernel_behaviour(measured: &Measured) -> Option<String> {
    let copied = thp_copies(measured)?;
    let huge = thp_page()?.bytes();
    let shown = human_bytes(copied);
    Some(if copied < huge / 2 {
        format!(
            "this kernel: the first write to a transparent huge page that a child has too splits it and copies {shown} \
             (Linux 5.8 and newer copy {})",
            base_page()
        )
    } else {
        format!(
            "this kernel: the first write to a transparent huge page that a child has too copies {shown}, the whole \
             page (as Linux before 5.8)"
        )
    })
}

/// Says how long khugepaged takes to join the pages, by its settings.
pub(super) fn khugepaged(measured: &Measured) -> Option<String> {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
    let number = |name: &str| Tree::default().read(format!("{FOLDER}/{name}"))?.trim().parse::<f64>().ok();
    let (pages, pause) = (number("pages_to_scan")?, number("scan_sleep_millisecs")?);
    let huge_pages =
        measured.cases.iter().filter(|(c, _)| c.pages == Pages::Thp).map(|(c, _)| c.huge_pages).max()?;
    let base_pages = huge_pages as f64 * (thp_page()?.bytes() / base_page().bytes()) as f64;
    let seconds = base_pages / pages.max(1.0) * pause / 1e3;
    Some(format!(
        "khugepaged, which joins small pages to huge ones, scans {pages:.0} of them every {:.0} s here ({FOLDER}): \
         it takes at least {seconds:.0} s for the {base_pages:.0} small pages of {huge_pages} huge pages",
        pause / 1e3
    ))
}

/// Returns the ratio with this subject.
pub(super) fn about<'a>(ratios: &'a [Ratio], subject: &str) -> Option<&'a Ratio> {
    ratios.iter().find(|ratio| ratio.subject == subject)
}

/// Compares what was found for programs that write everything with what the source found.
pub(super) fn source(measured: &Measured, ratios: &[Ratio]) -> Option<String> {
    let whole = about(ratios, "cow.dense.whole-process")?;
    let alone = about(ratios, "cow.dense.writes-alone")
        .map_or(String::new(), |alone| format!("the writes alone take {} of the time, ", alone.shown()));
    let cpu = about(ratios, "cow.dense.whole-process.cpu")
        .map_or(String::new(), |cpu| format!(" (CPU time {})", cpu.shown()));
    let runs = |name: &str| {
        let is_it = |case: &Case| {
            case.pages.name() == name
                && case.pattern == Pattern::Every
                && Some(case.huge_pages) == whole.huge_pages
        };
        measured.whole.iter().find(|(case, _)| is_it(case)).map(|(_, runs)| runs)
    };
    let wall = |name: &str| median(&runs(name)?.iter().map(|run| run.wall).collect::<Vec<f64>>()).ok();
    let (hugetlb, small) = (wall(&whole.names.0)?, wall(&whole.names.1)?);
    // (hugetlb + more) / (small + more) = source
    let more = (SOURCE_WHOLE * small - hugetlb) / (1.0 - SOURCE_WHOLE);
    let why = if more > 0.0 {
        format!(
            ". That would be the ratio of a process that also works for {} on something else: what the pages bring or \
             cost is the same, and a smaller part of the time",
            Unit::Seconds.show(more)
        )
    } else {
        String::new()
    };
    Some(format!(
        "hugetlb to small pages where every page is written: {alone}whole processes {}{cpu}; the source found \
         {SOURCE_WHOLE} for whole processes on its machine and kernel{why}",
        whole.shown()
    ))
}

/// Says why some percentiles are missing.
pub(super) fn few(measured: &Measured) -> Option<String> {
    let lacks = |(_, runs): &(Case, Vec<Forked>)| latencies(runs).carried(0.999).is_none();
    measured.cases.iter().any(lacks).then(|| {
        "p99 is shown from 368 writes on, p99.9 from 3688 on: fewer give no interval of 95 %".to_string()
    })
}

/// Returns for how many forks the memory was as huge as before after `MADV_COLLAPSE`, of how many.
pub(super) fn collapsed(measured: &Measured) -> (usize, usize) {
    let thp = measured.cases.iter().filter(|(case, _)| case.pages == Pages::Thp).flat_map(|(_, runs)| runs);
    // A call that failed has joined nothing.
    let after = |run: &Forked| run.joined.map_or(0, |joined| joined.huge);
    let tried = thp.map(|run| (run.huge[0], after(run))).filter(|(before, _)| *before > 0);
    tried.fold((0, 0), |(joined, all), (before, after)| (joined + usize::from(after >= before), all + 1))
}

pub(super) fn joined(measured: &Measured) -> Option<String> {
    let (joined, all) = collapsed(measured);
    (all > 0).then(|| {
        format!(
            "MADV_COLLAPSE after the end of the child: in {joined} of {all} forks all pages that were huge before \
             were huge again"
        )
    })
}

/// Says whether the huge pages of a server were joined again.
pub(super) fn joined_again(rest: &Rest) -> String {
    let [first, after, later] = rest.huge.map(human_bytes);
    let name = rest.side.name();
    let within = Unit::Seconds.show(rest.seconds);
    let what = match (rest.were_split(), rest.is_joined()) {
        (false, _) => "so there was nothing to join".to_string(),
        (true, true) => format!("joined again within {within} ({later})"),
        (true, false) => format!("not joined within {within} ({later})"),
    };
    format!("redis, {name}: {first} on huge pages before its first save, {after} after its last one, {what}")
}

/// Returns what can be compared with other reports.
pub(super) fn claims(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> Vec<Claim> {
    let of_ratio = |ratio: &Ratio| {
        let (word, carried) = ratio.word();
        Claim::word(ratio.subject, word, carried && !disturbed)
    };
    let mut claims: Vec<Claim> =
        ratios.iter().filter(|ratio| !ratio.subject.is_empty()).map(of_ratio).collect();
    if let (Some(copied), Some(page)) = (thp_copies(measured), thp_page()) {
        let word = if copied < page.bytes() / 2 { "splits-the-page" } else { "copies-the-page" };
        // The kernel counts this. It does not depend on the time that anything takes.
        claims.push(Claim::word("cow.first-write.thp", word, true));
    }
    let (joined, all) = collapsed(measured);
    if all > 0 {
        let word = if joined == all { "joins-all" } else { "joins-some" };
        // It depends on how much free memory is in large blocks, so only one of the answers is certain.
        claims.push(Claim::word("cow.collapse", word, joined == all && !disturbed));
    }
    let rests = measured.served.rests.iter().filter(|rest| rest.side == Side::Lifted && rest.were_split());
    let rests: Vec<bool> = rests.map(Rest::is_joined).collect();
    if !rests.is_empty() {
        let joined = rests.iter().all(|joined| *joined);
        let word = if joined { "joined" } else { "not-joined-in-time" };
        claims.push(Claim::word("cow.redis.joined.hugelift", word, joined && !disturbed));
    }
    claims
}

/// Marks a sentence whose figures are not certain.
pub(super) fn marked(sentence: String, carried: bool, disturbed: bool) -> String {
    match (carried, disturbed) {
        (true, false) => format!("{sentence}."),
        (_, true) => format!("Not sure: {sentence}; run again on an idle machine."),
        (false, false) => format!("Not sure: {sentence}; more rounds may tell."),
    }
}

pub(super) fn advice(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> Vec<String> {
    let server = if measured.served.saves.is_empty() {
        forks_of_servers(measured, ratios, disturbed)
    } else {
        redis_advice(&measured.served.saves, ratios, disturbed)
    };
    vec![writes_advice(measured, ratios, disturbed), server]
}

pub(super) fn writes_advice(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> String {
    let joins = "joins the huge pages that such writes have split once the child has ended (run --after-fork, as root)";
    let p50 = |name: &str, huge_pages: Option<u64>| {
        let mut cases = measured.cases.iter();
        let (_, runs) = cases.find(|(case, _)| {
            case.pages.name() == name
                && case.pattern == Pattern::OnePerHuge
                && huge_pages.is_none_or(|huge_pages| case.huge_pages == huge_pages)
        })?;
        latencies(runs).percentile(0.5).map(|ns| Unit::Seconds.show(ns * NS))
    };
    let whole = about(ratios, "cow.dense.whole-process").map(|whole| {
        let sentence = format!(
            "A process that writes all of its memory and ends takes {} of the time on hugetlb that it takes on small pages \
             (the source: {SOURCE_WHOLE})",
            whole.shown()
        );
        marked(sentence, whole.word().1, disturbed)
    });
    if let Some(ratio) = about(ratios, "cow.first-write.hugetlb-to-thp")
        && let (Some(hugetlb), Some(thp)) =
            (p50(&ratio.names.0, ratio.huge_pages), p50(&ratio.names.1, ratio.huge_pages))
    {
        let dense = whole.map_or(String::new(), |whole| format!(" {whole}"));
        let sentence = format!(
            "After a fork a write to a hugetlb page takes {hugetlb} here, {} times the {thp} of a write to a \
             transparent huge page: hugelift puts writable parts on THP unless --data-backing asks for hugetlb, \
             and {joins}",
            ratio.shown()
        );
        return marked(sentence, ratio.word().1, disturbed) + &dense;
    }
    match p50(&Pages::Thp.name(), None) {
        Some(thp) => marked(
            format!(
                "After a fork a write to a transparent huge page takes {thp} here (hugetlb could not be measured), and \
                 hugelift {joins}"
            ),
            true,
            disturbed,
        ),
        None => whole.unwrap_or_else(|| "There are no figures for transparent huge pages here.".into()),
    }
}

pub(super) fn redis_advice(saves: &[Save], ratios: &[Ratio], disturbed: bool) -> String {
    let of = |share: f64| {
        let one = |side: Side| over_saves(&of_side(saves, side), share);
        Some([one(Side::Off)?, one(Side::On)?, one(Side::Lifted)?])
    };
    const P999: [&str; 2] = ["cow.redis.p999.thp-on", "cow.redis.p999.hugelift"];
    const P99: [&str; 2] = ["cow.redis.p99.thp-on", "cow.redis.p99.hugelift"];
    // p99.9 is stated only if its intervals carry it and the sides can be compared by it.
    let compared = P999.iter().all(|subject| about(ratios, subject).is_some());
    let p999 = of(0.999).filter(|all| compared && all.iter().all(is_narrow));
    let (estimates, words, subjects) = match (p999, of(0.99)) {
        (Some(all), _) => (all, "thousand", P999),
        (None, Some(all)) => (all, "hundred", P99),
        (None, None) => return "redis: too few commands for p99 on every side.".into(),
    };
    let shown = estimates.map(|estimate| {
        let show = |ns: f64| Unit::Seconds.show(ns * NS);
        match estimate.interval {
            Some(i) => format!("{} [{}, {}]", show(estimate.point), show(i.low), show(i.high)),
            None => show(estimate.point),
        }
    });
    let to_off = |subject: &str| {
        about(ratios, subject).map_or(("not compared".into(), false), |ratio| match ratio.word() {
            ("no-difference" | "unknown", _) => (format!("no difference seen, {}", ratio.shown()), false),
            (word, carried) => (format!("{word}, {} of THP off", ratio.shown()), carried),
        })
    };
    let [off, on, lifted] = shown;
    let ((to_on, on_carried), (to_lifted, lifted_carried)) = (to_off(subjects[0]), to_off(subjects[1]));
    let sentence = format!(
        "While redis saves its data, one command in a {words} takes longer than {off} with THP off, {on} with THP on \
         ({to_on}) and {lifted} under hugelift ({to_lifted}): this is what --malloc thp costs or brings a server of \
         this kind"
    );
    let carried = on_carried && lifted_carried && estimates.iter().all(is_narrow);
    marked(sentence, carried, disturbed)
}

/// Says what fork(2) itself costs, where redis was not measured.
pub(super) fn forks_of_servers(measured: &Measured, ratios: &[Ratio], disturbed: bool) -> String {
    let huge_pages = largest(measured, Pattern::Every);
    let fork = |pages: Pages| {
        let case = Case { huge_pages: huge_pages?, pages, pattern: Pattern::Every };
        middle(runs(measured, case)?, |run| Some(run.fork_ns * NS))
    };
    match (fork(Pages::Small), fork(Pages::Thp)) {
        (Some(small), Some(thp)) => marked(
            format!(
                "fork(2) of {} takes {} on small pages and {} on huge ones: a server that saves its data stands still \
                 for this time, and with huge pages the later writes are slower instead",
                human_bytes(huge_pages.unwrap_or(0) * thp_page().map_or(0, |page| page.bytes())),
                Unit::Seconds.show(small),
                Unit::Seconds.show(thp)
            ),
            about(ratios, "cow.fork.thp-to-small").is_some_and(|ratio| ratio.word().1),
            disturbed,
        ),
        _ => "The effect on a server was not measured.".into(),
    }
}
