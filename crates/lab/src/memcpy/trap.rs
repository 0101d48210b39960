// SPDX-License-Identifier: Apache-2.0
//! What the measurements say of the trap: at which sizes it is seen, how sure that is, and why.

use super::kind::{Kind, Source};
use super::measured::{Measured, Size};
use crate::memory::Pages;
use crate::results::claim::Claim;
use crate::results::machine::Machine;
use crate::results::unit::Unit;
use hugelift_core::addr::human_bytes;
use hugelift_measure::stats::{Estimate, Verdict, ratio};

/// The trap is surely seen where the whole interval is above this ratio, and surely absent where it is below
/// [`ABSENT`]. What lies between keeps two runs on one machine, whose intervals differ, from contradicting
/// each other.
const SEEN: f64 = 1.25;
/// See [`SEEN`]. A smaller difference is not worth a warning.
const ABSENT: f64 = 1.1;

/// How many times as long as reading its source a copy takes at least, if its writes decide how fast it is.
const WRITES: f64 = 1.5;

/// Returns what a sentence says that is not sure.
fn again(machine: &Machine) -> &'static str {
    match machine.hypervisor {
        None => "run again on an idle machine, or with more --rounds",
        Some(_) => {
            "run again on an idle machine, or with more --rounds; in a guest, blocks that need the L3 cache are never \
             sure, since other guests use that cache unseen"
        }
    }
}

/// Returns whether a copy of this size needs a cache that other guests may use too.
fn needs_shared_cache(bytes: usize, machine: &Machine) -> bool {
    let l2 = machine.caches_for(false).iter().find(|cache| cache.level == 2).map(|cache| cache.bytes);
    let zero_page = machine.thp_bytes.unwrap_or(u64::MAX);
    machine.hypervisor.is_some()
        && l2.is_none_or(|l2| (bytes as u64).saturating_add(zero_page.min(bytes as u64)) > l2)
}

/// The comparison of the two zero pages at one size.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Size of the blocks.
    pub bytes: usize,
    /// CPU time of a copy from the huge zero page, divided by that of one from the small zero page.
    pub ratio: Estimate,
    /// Whether other programs disturbed this size, or may have without being seen: in a guest, other guests
    /// use the L3 cache too.
    doubtful: bool,
}

impl At {
    /// Returns whether the interval shows the trap.
    fn is_more(&self) -> bool {
        self.ratio.verdict(1.0) == Verdict::More
    }

    /// Returns whether the trap is surely seen (true) or surely absent (false); `None` if neither is sure.
    fn surely(&self) -> Option<bool> {
        let interval = self.ratio.interval.filter(|_| !self.doubtful)?;
        (interval.low > SEEN).then_some(true).or((interval.high < ABSENT).then_some(false))
    }
}

/// What was found at all sizes, of which there is at least one.
#[derive(Debug)]
pub struct Trap {
    /// By size.
    sizes: Vec<At>,
    /// Whether other programs disturbed the experiment.
    disturbed: bool,
}

/// Returns the ratio of times, round by round.
pub fn slowdown(size: &Size, of: Kind, against: Kind) -> Option<Estimate> {
    let pairs: Vec<(f64, f64)> =
        size.times(against)?.iter().copied().zip(size.times(of)?.iter().copied()).collect();
    ratio(&pairs).ok()
}

impl Trap {
    /// Returns what the measurements say; `None` if there is no figure for one of the zero pages.
    pub fn of(measured: &Measured, machine: &Machine, disturbed: bool) -> Option<Trap> {
        let at = |size: &Size| {
            let ratio = slowdown(size, Kind::HUGE_ZERO, Kind::SMALL_ZERO)?;
            let doubtful = size.disturbed || needs_shared_cache(size.bytes, machine);
            Some(At { bytes: size.bytes, ratio, doubtful })
        };
        let sizes: Vec<At> = measured.sizes.iter().filter_map(at).collect();
        (!sizes.is_empty()).then_some(Trap { sizes, disturbed })
    }

    /// Returns the size with the largest ratio, of those that have an interval if there are any.
    pub fn worst(&self) -> Option<&At> {
        let rank = |at: &At| (at.ratio.interval.is_some(), at.ratio.point);
        self.sizes.iter().max_by(|a, b| {
            let ((a_has, a), (b_has, b)) = (rank(a), rank(b));
            a_has.cmp(&b_has).then(a.total_cmp(&b))
        })
    }

    /// Returns the index of the smallest size from which the interval is above 1 at every size.
    fn from(&self) -> Option<usize> {
        let from = self.sizes.iter().rposition(|at| !at.is_more()).map_or(0, |last| last + 1);
        (from < self.sizes.len()).then_some(from)
    }

    /// Returns what is sure of one size; nothing if the experiment was disturbed.
    fn surely(&self, at: &At) -> Option<bool> {
        at.surely().filter(|_| !self.disturbed)
    }

    /// Returns the index of the smallest size from which the trap is surely seen at every size.
    fn surely_from(&self) -> Option<usize> {
        let from = self.sizes.iter().rposition(|at| self.surely(at) != Some(true)).map_or(0, |last| last + 1);
        (from < self.sizes.len()).then_some(from)
    }

    /// Returns the bounds of the size from which the trap is seen. They are a neighbouring size away from
    /// the largest size at which it is surely absent, and from the index `from`.
    fn bounds(&self, from: usize) -> (f64, f64) {
        let bytes = |index: usize| self.sizes[index].bytes as f64;
        let absent = self.sizes[..from].iter().rposition(|at| self.surely(at) == Some(false));
        let low = absent.and_then(|index| index.checked_sub(1)).map_or(0.0, bytes);
        // Beyond the largest size a neighbour is assumed at twice its size.
        let high = if from + 1 < self.sizes.len() { bytes(from + 1) } else { 2.0 * bytes(from) };
        (low, high)
    }

    /// Returns the claims: one for each size, which does not depend on the sizes that were chosen, and those
    /// about all sizes.
    pub fn claims(&self) -> Vec<Claim> {
        let word = |seen| if seen { "seen" } else { "none" };
        let mut claims: Vec<Claim> = self
            .sizes
            .iter()
            .map(|at| {
                let subject = format!("memcpy.trap.at.{}", human_bytes(at.bytes as u64).replace(' ', ""));
                let surely = self.surely(at);
                Claim::word(subject, word(surely.unwrap_or(at.is_more())), surely.is_some())
            })
            .collect();
        let sure = self.surely_from();
        // Another size might show it, so its absence is sure only of the sizes measured.
        let seen = self.from().is_some();
        claims.push(Claim::word("memcpy.trap", word(seen), sure.is_some()));
        let from = sure.or(self.from()).map(|from| self.bounds(from));
        claims.extend(
            from.map(|bounds| Claim::between("memcpy.trap.from", bounds, Unit::Bytes, sure.is_some())),
        );
        claims
    }

    /// Returns the names of the sizes for which the answer is sure, or `None` if neither is.
    fn names(&self, answer: Option<bool>) -> String {
        let fitting = self.sizes.iter().filter(|at| self.surely(at) == answer);
        fitting.map(|at| human_bytes(at.bytes as u64)).collect::<Vec<_>>().join(", ")
    }

    /// Says whether there is a trap, and from which size. States as sure only what the intervals carry.
    pub fn sentence(&self, measured: &Measured, machine: &Machine) -> String {
        let Some(worst) = self.worst() else { return String::new() };
        let ratio = format!(
            "at worst, with blocks of {}, such a copy takes {:.2} of the CPU time of one from the small zero page",
            human_bytes(worst.bytes as u64),
            worst.ratio
        );
        let largest = self.sizes.last().map_or(0, |at| at.bytes as u64);
        let size_at = |from: usize| (from, human_bytes(self.sizes[from].bytes as u64));
        let (surely_from, from) = (self.surely_from().map(size_at), self.from().map(size_at));
        let again = again(machine);
        let (seen, none, open) = (self.names(Some(true)), self.names(Some(false)), self.names(None));
        match surely_from.clone().or(from) {
            Some((from, size)) if surely_from.is_some() => format!(
                "Here a copy whose source was never written is slower if that source is the huge zero page, from \
                 blocks of {size} to the largest ones ({}): {ratio}. A benchmark that does not write its source first \
                 blames huge pages for the effect of its empty source. {}",
                human_bytes(largest),
                self.why(from, machine)
            ),
            _ if !seen.is_empty() => format!(
                "Here a copy whose source was never written is slower with blocks of {seen} if that source is the huge \
                 zero page; of other sizes that is not sure: {ratio}; {again}."
            ),
            Some((_, size)) => format!(
                "Not sure: a copy whose source was never written seems slower from blocks of {size} on if that source \
                 is the huge zero page ({ratio}); {again}."
            ),
            None if open.is_empty() => format!(
                "No trap is seen here with blocks of {none}: {ratio}.{}",
                self.writes(measured).unwrap_or_default()
            ),
            None if none.is_empty() => {
                format!("Not sure whether there is a trap here: {ratio}; {again}.")
            }
            None => format!(
                "No trap is seen here with blocks of {none}; not sure with blocks of {open} ({ratio}): {again}.{}",
                self.writes(measured).unwrap_or_default()
            ),
        }
    }

    /// Says that writing, not reading, decides how fast the largest copy is; `None` if the interval does not
    /// show it.
    fn writes(&self, measured: &Measured) -> Option<String> {
        let size = measured.sizes.last()?;
        let longer = slowdown(size, Kind::HUGE_ZERO, Kind::Read(Source::Never(Pages::Thp)))?;
        (longer.interval?.low > WRITES).then(|| {
            format!(
                " With blocks of {} it takes {longer:.1} times as long as reading the huge zero page alone, so its \
                 writes decide.",
                human_bytes(size.bytes as u64)
            )
        })
    }

    /// Explains by the caches of the machine why the trap begins at this size.
    fn why(&self, from: usize, machine: &Machine) -> String {
        let caches = machine.caches_for(false);
        let cache = |level| caches.iter().find(|cache| cache.level == level);
        let (Some(l1), Some(l2), Some(huge)) = (cache(1), cache(2), machine.thp_bytes) else {
            return "Why it begins there cannot be said: the kernel shows no caches.".into();
        };
        let small = human_bytes(machine.base_page_bytes);
        let both = |bytes: usize| (bytes as u64).min(huge) + bytes as u64;
        let expected = self.sizes.iter().position(|at| both(at.bytes) > l2.bytes);
        let near = expected.is_some_and(|expected| expected.abs_diff(from) <= 1);
        format!(
            "Probably the caches decide where it begins: the small zero page of {small} is always read from the \
             nearest caches (L1: {}), while the huge one ({}, or as much of it as a block has) shares the L2 cache \
             ({}{}) with the destination{}",
            human_bytes(l1.bytes),
            human_bytes(huge),
            human_bytes(l2.bytes),
            cache(3).map_or(String::new(), |l3| format!(", then an L3 cache of {}", human_bytes(l3.bytes))),
            if near {
                ", and from about this size both no longer fit there; a larger L2 cache moves it up."
            } else {
                "; by its size alone that cache would be too small from another size on."
            }
        )
    }
}

/// Says, by reading alone with the largest blocks, in which order the huge zero page and memory are read;
/// `None` if the intervals do not show it.
pub fn reads(
    measured: &Measured,
    disturbed: bool,
    rate: impl Fn(usize, &[f64]) -> Option<Estimate>,
) -> Option<String> {
    let size = measured.sizes.last()?;
    let [small, huge, memory] =
        [Source::Never(Pages::Small), Source::Never(Pages::Thp), Source::Written(Pages::Thp)].map(Kind::Read);
    let verdict = |of, against| slowdown(size, of, against).map(|ratio| ratio.verdict(1.0));
    if verdict(memory, huge)? != Verdict::More {
        return None;
    }
    let show = |kind| Some(Unit::GigabytesPerSecond.show(rate(size.bytes, size.times(kind)?)?.point));
    let slower = match verdict(huge, small)? {
        Verdict::More => "slower than",
        Verdict::Less => "faster than",
        Verdict::Undecided | Verdict::TooFew => "as far as seen like",
    };
    Some(format!(
        "{}reading alone, in blocks of {}: the huge zero page is read from a cache, at {} GB/s, {slower} the small \
         one ({} GB/s); memory is read at {} GB/s",
        if disturbed { "not sure: " } else { "" },
        human_bytes(size.bytes as u64),
        show(huge)?,
        show(small)?,
        show(memory)?
    ))
}
