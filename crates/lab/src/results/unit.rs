// SPDX-License-Identifier: Apache-2.0
//! Units of figures, and how figures are shown to people.

use hugelift_core::addr::human_bytes;
use hugelift_core::printable::thousands;
use serde::{Deserialize, Serialize};

/// What a number counts. A number is always in the unit itself, as in bytes or nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Words, not numbers.
    Text,
    /// A count.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds, however large the number is: for figures that are compared.
    Nanoseconds,
    /// A time in seconds. It is shown in s, ms, µs or ns, as fits its size.
    Seconds,
    /// A rate: events per second.
    PerSecond,
    /// Gigabytes (10^9 bytes) per second.
    GigabytesPerSecond,
    /// One number divided by another.
    Ratio,
    /// Percent.
    Percent,
}

impl Unit {
    /// Returns the name of the unit for an axis or a column title. It is empty if the figures show the unit
    /// themselves or have none.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Text | Unit::Count | Unit::Bytes | Unit::Seconds | Unit::Ratio => "",
            Unit::Nanoseconds => "ns",
            Unit::PerSecond => "1/s",
            Unit::GigabytesPerSecond => "GB/s",
            Unit::Percent => "%",
        }
    }

    /// Returns a title with the unit: "latency, ns".
    pub fn with(self, name: &str) -> String {
        if self.name().is_empty() { name.into() } else { format!("{name}, {}", self.name()) }
    }

    /// Formats a figure for people, without the unit that [`Unit::name`] returns.
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".into();
        }
        match self {
            // The conversion saturates at the ends of u64.
            Unit::Bytes if value >= 0.0 => human_bytes(value.round() as u64),
            Unit::Bytes => format!("-{}", human_bytes(-value.round() as u64)),
            Unit::Seconds => time(value),
            Unit::Count | Unit::PerSecond => grouped(value),
            Unit::Text | Unit::Nanoseconds | Unit::GigabytesPerSecond | Unit::Ratio | Unit::Percent => {
                three_digits(value)
            }
        }
    }
}

/// Formats with at least three digits, at most two of them behind the point.
fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn time(seconds: f64) -> String {
    let (unit, name) = match seconds.abs() {
        s if s >= 1.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e-3, "ms"),
        s if s >= 1e-6 => (1e-6, "µs"),
        _ => (1e-9, "ns"),
    };
    format!("{} {name}", three_digits(seconds / unit))
}

/// Formats whole numbers in groups of three digits: 1 234 567. A number below 100 that is not whole gets
/// decimals.
fn grouped(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return three_digits(value);
    }
    let digits = format!("{:.0}", value.abs());
    let out = thousands(&digits);
    if value < 0.0 && digits != "0" { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(Unit::Nanoseconds.show(1.234), "1.23");
        assert_eq!(Unit::Nanoseconds.show(9.999), "10.0");
        assert_eq!(Unit::Nanoseconds.show(258.4), "258");
        assert_eq!(Unit::Bytes.show(4096.0 * 64.0), "256 kB");
        assert_eq!(Unit::Bytes.show(-2048.0), "-2 kB");
        assert_eq!(Unit::Count.show(1_234_567.0), "1 234 567");
        assert_eq!(Unit::Count.show(-1234.4), "-1 234");
        assert_eq!(Unit::Count.show(0.5), "0.50");
        assert_eq!(Unit::Seconds.show(0.000_015), "15.0 µs");
        assert_eq!(Unit::Seconds.show(2.0), "2.00 s");
        for unit in [Unit::Bytes, Unit::Seconds, Unit::Count, Unit::Ratio] {
            assert_eq!(unit.show(f64::NAN), "-");
            assert!(!unit.show(1e300).is_empty());
        }
    }

    #[test]
    fn names_with_units() {
        assert_eq!(Unit::Nanoseconds.with("latency"), "latency, ns");
        assert_eq!(Unit::Bytes.with("working set"), "working set");
    }
}
