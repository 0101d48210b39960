// SPDX-License-Identifier: Apache-2.0
//! Shares as people write them: `2%`, `0.2%`. They are kept exactly, in millionths.

use crate::quantity;
use std::fmt;
use std::time::Duration;

/// The whole, in millionths.
const WHOLE: u32 = 1_000_000;
/// One percent, in millionths.
const PERCENT: u32 = WHOLE / 100;

/// A share of something, from nothing to all of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Share {
    millionths: u32,
}

impl Share {
    /// Returns a share of so many millionths; more than all of it counts as all.
    pub const fn of_millionths(millionths: u32) -> Share {
        Share { millionths: if millionths < WHOLE { millionths } else { WHOLE } }
    }

    /// Reads a share: `2%`, `0.2%`, with at most four digits behind the point.
    ///
    /// # Errors
    /// Returns a message with examples if the text is no such share, or one above 100%.
    pub fn parse(text: &str) -> Result<Share, String> {
        let share = text.trim().strip_suffix('%').and_then(|number| millionths(number.trim_end()));
        let share = share.filter(|share| *share <= WHOLE);
        share.map(Share::of_millionths).ok_or_else(|| format!("'{text}' is not a share, as in 2% or 0.25%"))
    }

    /// Returns whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.millionths == 0
    }

    /// Returns this share of a number, rounded down.
    pub fn of(self, number: u64) -> u64 {
        let share = u128::from(number) * u128::from(self.millionths) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(number)
    }

    /// Returns this share of a time, rounded down to nanoseconds.
    pub fn of_time(self, time: Duration) -> Duration {
        const SECOND: u128 = 1_000_000_000;
        let nanos = time.as_nanos() * u128::from(self.millionths) / u128::from(WHOLE);
        let seconds = u64::try_from(nanos / SECOND).unwrap_or(u64::MAX);
        Duration::new(seconds, u32::try_from(nanos % SECOND).unwrap_or_default())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.millionths / PERCENT, self.millionths % PERCENT);
        let text = match rest {
            0 => format!("{percent}%"),
            rest => format!("{percent}.{}%", format!("{rest:04}").trim_end_matches('0')),
        };
        f.pad(&text)
    }
}

/// Reads a number of percent with up to four decimals as millionths.
fn millionths(number: &str) -> Option<u32> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 4 {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(PERCENT)?.checked_add(decimals)
}

/// An amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A share of the machine's memory.
    Share(Share),
    /// So many bytes.
    Bytes(u64),
}

impl Amount {
    /// Reads a share, or a number of bytes as [`quantity::bytes`] does.
    ///
    /// # Errors
    /// Returns a message with examples if the text is neither.
    pub fn parse(text: &str) -> Result<Amount, String> {
        match text.contains('%') {
            true => Share::parse(text).map(Amount::Share),
            false => {
                quantity::bytes(text).map(Amount::Bytes).map_err(|e| format!("{e}, nor a share, as in 2%"))
            }
        }
    }

    /// Returns it in bytes, on a machine with so many bytes of memory.
    pub fn bytes(self, machine: u64) -> u64 {
        match self {
            Amount::Share(share) => share.of(machine),
            Amount::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Share(share) => share.fmt(f),
            Amount::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn issue_33_shares_as_people_write_them() {
        for (text, millionths, shown) in [
            ("2%", 20_000, "2%"),
            ("0.2%", 2_000, "0.2%"),
            (" 0.2500 %", 2_500, "0.25%"),
            ("0.0001%", 1, "0.0001%"),
            ("0%", 0, "0%"),
            ("100%", 1_000_000, "100%"),
        ] {
            let share = Share::parse(text).unwrap();
            assert_eq!(
                (share, share.to_string()),
                (Share::of_millionths(millionths), shown.into()),
                "{text}"
            );
        }
        for bad in
            ["", "%", "2", ".5%", "5.%", "-1%", "101%", "100.0001%", "0.00001%", "1e1%", "99999999999%", "٣%"]
        {
            assert!(Share::parse(bad).unwrap_err().contains("is not a share, as in 2%"), "{bad}");
        }
    }

    #[test]
    fn issue_33_amounts_of_memory() {
        let bytes = |text| Amount::parse(text).map(|amount| amount.bytes(100 << 20));
        assert_eq!(bytes("2%"), Ok(2 << 20));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert!(bytes("2 apples").unwrap_err().contains("is not a size"));
        assert!(bytes("x%").unwrap_err().contains("is not a share"));
    }

    proptest! {
        #[test]
        fn issue_33_a_share_is_not_more_than_the_whole(millionths in 0..=WHOLE, number: u64, nanos in 0..1_000_000_000_u32) {
            let share = Share::of_millionths(millionths);
            prop_assert!(share.of(number) <= number);
            let time = Duration::new(number, nanos);
            prop_assert!(share.of_time(time) <= time);
            prop_assert_eq!(Share::parse(&share.to_string()), Ok(share));
            let exact = time.as_nanos() * u128::from(millionths) / u128::from(WHOLE);
            prop_assert_eq!(share.of_time(time).as_nanos(), exact);
        }
    }
}
