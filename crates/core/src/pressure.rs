// SPDX-License-Identifier: Apache-2.0
//! Memory pressure: when memory is so short that copies are worth less than what they take.
//!
//! The kernel says which share of the time some task has waited for memory (Documentation/accounting/psi.rst). Huge pages for
//! code save 1 to 11 % of the CPU time in publications. So where tasks lose a tenth of their time, memory that is
//! free is worth more than any copy. Below half of that it is not short any more: a value at the border brings no turns.
//!
//! A control group of version 1 has a limit, and no such share. There memory is short when a sixteenth of the limit is left.

use crate::addr::human_bytes;
use std::fmt;

/// Memory is short from this share of the time on, in hundredths of a percent.
const SHORT: u32 = 1000;
/// It is short until the share falls below this.
const ENOUGH: u32 = 500;
/// Memory is short when less than one part in so many of a limit is left.
const SHORT_OF_LIMIT: u64 = 16;
/// It is short until more than one part in so many is left.
const ENOUGH_OF_LIMIT: u64 = 8;

/// How short memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pressure {
    /// The share of the last ten seconds in which some task has waited for memory, in hundredths of a percent.
    Waits {
        /// The share.
        share: u32,
        /// The tasks are those of a control group, not those of the machine.
        is_of_group: bool,
    },
    /// What the limit of a control group leaves.
    Limit {
        /// Bytes that are left.
        left: u64,
        /// Bytes of the limit.
        bytes: u64,
    },
}

impl Pressure {
    /// Returns whether memory is short; `was` says whether it was so before.
    pub fn is_short(self, was: bool) -> bool {
        match self {
            Pressure::Waits { share, .. } => share >= if was { ENOUGH } else { SHORT },
            Pressure::Limit { left, bytes } => {
                left < bytes / if was { ENOUGH_OF_LIMIT } else { SHORT_OF_LIMIT }
            }
        }
    }
}

/// Writes "memory pressure 12.4 % (some, avg10)".
impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Pressure::Waits { share, is_of_group } => {
                let of = if is_of_group { " of its control group" } else { "" };
                write!(f, "memory pressure{of} {:.1} % (some, avg10)", f64::from(share) / 100.0)
            }
            Pressure::Limit { left, bytes } => {
                write!(f, "its control group has {} of {} left", human_bytes(left), human_bytes(bytes))
            }
        }
    }
}

/// Returns the share of the last ten seconds in which some task has waited, in hundredths of a percent, of the text of a
/// pressure file; `None` if the text has none.
pub fn waits(text: &str) -> Option<u32> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, hundredths) = value.split_once('.')?;
    let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if hundredths.len() != 2 || !is_plain(whole) || !is_plain(hundredths) {
        return None;
    }
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_31_4_what_the_kernel_writes() {
        let text = "some avg10=12.40 avg60=0.02 avg300=0.54 total=10283260\n\
                    full avg10=99.00 avg60=0.02 avg300=0.49 total=7240088\n";
        assert_eq!(waits(text), Some(1240));
        assert_eq!(waits("some avg10=0.05 avg60=1.00"), Some(5));
        assert_eq!(waits("some avg10=100.00 avg60=1.00"), Some(10_000));
        for other in [
            "",
            "some",
            "some avg10=",
            "some avg10=1",
            "some avg10=1.2",
            "some avg10=-1.00 ",
            "full avg10=1.00",
        ] {
            assert_eq!(waits(other), None, "{other}");
        }
        assert_eq!(waits("some avg10=99999999.99"), None);
    }

    #[test]
    fn issue_31_4_memory_is_short_until_there_is_clearly_more() {
        let waits = |share| Pressure::Waits { share, is_of_group: false };
        let short = |pressure: Pressure| [pressure.is_short(false), pressure.is_short(true)];
        assert_eq!(
            [0, 499, 500, 999, 1000].map(|share| short(waits(share))),
            [[false, false], [false, false], [false, true], [false, true], [true, true]]
        );
        let limit = |left| Pressure::Limit { left, bytes: 160 };
        assert_eq!(
            [0, 9, 10, 19, 20, 160].map(|left| short(limit(left))),
            [[true, true], [true, true], [false, true], [false, true], [false, false], [false, false]]
        );
        assert!(!Pressure::Limit { left: 0, bytes: 0 }.is_short(true));
    }

    #[test]
    fn issue_31_4_how_it_is_said() {
        let said = |pressure: Pressure| pressure.to_string();
        assert_eq!(
            said(Pressure::Waits { share: 1240, is_of_group: false }),
            "memory pressure 12.4 % (some, avg10)"
        );
        assert_eq!(
            said(Pressure::Waits { share: 9, is_of_group: true }),
            "memory pressure of its control group 0.1 % (some, avg10)"
        );
        let limit = Pressure::Limit { left: 8 << 20, bytes: 160 << 20 };
        assert_eq!(said(limit), "its control group has 8 MB of 160 MB left");
    }

    proptest! {
        #[test]
        fn issue_31_4_no_text_panics(text in "(some )?(avg10=)?[0-9.]{0,14}.{0,8}", share in any::<u32>(), was in any::<bool>()) {
            let _ = waits(&text);
            let pressure = Pressure::Waits { share, is_of_group: was };
            prop_assert!(!pressure.is_short(false) || pressure.is_short(true));
        }
    }
}
