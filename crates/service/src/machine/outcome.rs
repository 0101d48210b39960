// SPDX-License-Identifier: Apache-2.0
//! What `hugelift compare --pid PID --json` has found out (docs/reference/schema/compare.json).

use hugelift_core::service::verify::Verdict;
use hugelift_ledger::entry::Ratio;
use serde::Deserialize;

/// The result of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// What was compared.
    pub measure: String,
    /// The ratio lifted / bare.
    pub ratio: Option<Ratio>,
    /// The pairs of periods.
    pub pairs: u64,
    /// What follows.
    pub verdict: Verdict,
}

#[derive(Deserialize)]
struct Compared {
    figure: String,
    higher_is_better: bool,
    live: Option<Live>,
    variants: Vec<Variant>,
}

#[derive(Deserialize)]
struct Live {
    metric: Metric,
}

#[derive(Deserialize)]
struct Metric {
    work: Option<String>,
}

#[derive(Deserialize)]
struct Variant {
    verdict: String,
    ratios: Vec<Figure>,
}

#[derive(Deserialize)]
struct Figure {
    figure: String,
    point: f64,
    low: Option<f64>,
    high: Option<f64>,
    pairs: u64,
}

impl Outcome {
    /// Returns the outcome of an experiment that gave no result.
    pub fn none() -> Outcome {
        Outcome { measure: "nothing".into(), ratio: None, pairs: 0, verdict: Verdict::Unmeasured }
    }

    /// Reads the output. What is not the result of an experiment on CPU time is no result.
    pub fn parse(json: &[u8]) -> Outcome {
        serde_json::from_slice(json).ok().and_then(Outcome::of).unwrap_or_else(Outcome::none)
    }

    fn of(compared: Compared) -> Option<Outcome> {
        let [variant] = <[Variant; 1]>::try_from(compared.variants).ok()?;
        let work = compared.live.and_then(|live| live.metric.work);
        let measure = match (compared.figure.as_str(), work.as_deref()) {
            ("cpu-per-unit", Some("system-calls")) => "CPU time per system call",
            ("cpu-per-unit", Some("reads-and-writes")) => "CPU time per read or write",
            ("cpu-per-unit", Some("voluntary-switches")) => "CPU time per voluntary context switch",
            ("cpu-per-unit", Some("bytes")) => "CPU time per byte",
            ("cpu-per-second", _) => "CPU time per second",
            _ => return None,
        };
        if compared.higher_is_better {
            return None;
        }
        let figure = variant.ratios.into_iter().find(|ratio| ratio.figure == compared.figure);
        let (pairs, ratio) = figure.map_or((0, None), |figure| (figure.pairs, figure.ratio()));
        let by_ratio = ratio.map_or(Verdict::Unmeasured, |ratio| Verdict::of_interval(ratio.low, ratio.high));
        // compare knows whether huge pages were seen, and whether there are enough pairs.
        let verdict = match (variant.verdict.as_str(), by_ratio) {
            ("faster", Verdict::Pays) => Verdict::Pays,
            ("slower", Verdict::Harms) => Verdict::Harms,
            ("no-difference" | "nothing-to-lift", _) => Verdict::PaysNot,
            _ => Verdict::Unmeasured,
        };
        let ratio = ratio.filter(|_| verdict != Verdict::Unmeasured);
        Some(Outcome { measure: measure.into(), ratio, pairs, verdict })
    }
}

impl Figure {
    fn ratio(&self) -> Option<Ratio> {
        Some(Ratio { point: self.point, low: self.low?, high: self.high? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: &str, low: f64, high: f64) -> Verdict {
        let text = format!(
            r#"{{"version":1,"figure":"cpu-per-unit","higher_is_better":false,"more":1,
            "live":{{"metric":{{"kind":"cpu-per-work","work":"system-calls","variation":0.01}}}},
            "variants":[{{"name":"lifted","verdict":"{verdict}","nothing_to_lift":false,"ratios":[
            {{"figure":"cpu-per-second","point":1.0,"low":null,"high":null,"pairs":3}},
            {{"figure":"cpu-per-unit","point":0.97,"low":{low},"high":{high},"pairs":40}}]}}]}}"#
        );
        let outcome = Outcome::parse(text.as_bytes());
        assert_eq!((outcome.measure.as_str(), outcome.pairs), ("CPU time per system call", 40));
        assert_eq!(outcome.ratio.is_some(), outcome.verdict != Verdict::Unmeasured);
        outcome.verdict
    }

    #[test]
    fn issue_33_4_both_the_verdict_and_the_interval_must_say_so() {
        assert_eq!(outcome("faster", 0.95, 0.99), Verdict::Pays);
        assert_eq!(outcome("slower", 1.01, 1.2), Verdict::Harms);
        assert_eq!(outcome("no-difference", 0.95, 1.01), Verdict::PaysNot);
        for (verdict, low, high) in [
            ("faster", 0.95, 1.0),
            ("slower", 0.9, 1.1),
            ("not-huge", 0.9, 0.95),
            ("too-few", 0.9, 0.95),
            ("odd", 0.9, 0.95),
        ] {
            assert_eq!(outcome(verdict, low, high), Verdict::Unmeasured, "{verdict}");
        }
        for bad in [
            &b""[..],
            b"{}",
            b"null",
            b"\xff",
            b"{\"figure\":\"wall\",\"higher_is_better\":false,\"variants\":[]}",
        ] {
            assert_eq!(Outcome::parse(bad), Outcome::none());
        }
    }
}
