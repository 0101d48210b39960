// SPDX-License-Identifier: Apache-2.0
//! Times and sizes as people type them: one notation for every option and every configuration.

use std::time::Duration;

/// The longest time that is accepted: 10 years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Units of time with their length in seconds.
const UNITS: [(&[&str], f64); 7] = [
    (&["ns", "nsec"], 1e-9),
    (&["us", "µs", "usec"], 1e-6),
    (&["ms", "msec"], 1e-3),
    (&["s", "sec", "secs", "second", "seconds"], 1.0),
    (&["m", "min", "mins", "minute", "minutes"], 60.0),
    (&["h", "hr", "hrs", "hour", "hours"], 3600.0),
    (&["d", "day", "days"], 86400.0),
];

/// Reads a time: `5` and `5s` are seconds, `500ms`, `1.5m`, `2h`, `1d`; several add up, as in
/// `1m30s`.
///
/// # Errors
/// Returns a message with examples if the text is no such time.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time, as in 5 (seconds), 500ms, 90s or 2m");
    let mut rest = text.trim();
    // A single number may lack its unit, which is then seconds.
    if let Ok(seconds) = rest.parse::<f64>()
        && rest.ends_with(|c: char| c.is_ascii_digit() || c == '.')
        && !rest.contains(['e', 'E', '+', '-'])
    {
        return of_seconds(seconds).ok_or_else(wrong);
    }
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after.trim_start(), char::is_alphabetic);
        let seconds = UNITS.iter().find(|(names, _)| names.contains(&unit)).map(|(_, seconds)| *seconds);
        let value = number.parse::<f64>().ok().zip(seconds).and_then(|(n, s)| of_seconds(n * s));
        let sum = value.and_then(|value| total.checked_add(value)).filter(|sum| *sum <= LONGEST);
        total = sum.ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// Reads a time as [`duration`] does, and refuses one outside `least..=most`.
///
/// # Errors
/// Returns a message if the text is no time, or one out of the range.
pub fn duration_between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < least {
        return Err(format!("'{text}' is less than {least:?}"));
    }
    if time > most {
        return Err(format!("'{text}' is more than {most:?}"));
    }
    Ok(time)
}

/// Reads a time as [`duration`] does, and refuses 0.
///
/// # Errors
/// Returns a message if the text is no time, or 0.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("'{text}' is not a time above 0, as in 5 (seconds), 500ms, 90s or 2m")),
        time => Ok(time),
    }
}

/// Reads a number of bytes: `512M`, `1G`, `64kB`, `2MiB` or plain bytes. The units are powers of
/// 1024, in any case.
///
/// # Errors
/// Returns a message with examples if the text is no such size, or one beyond 64 bits.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text.trim(), |c| c.is_ascii_digit());
    let value = || number.parse::<u64>().ok()?.checked_mul(1 << shift(unit.trim())?);
    value().ok_or_else(|| format!("'{text}' is not a size, as in 64k, 512M, 1G, or 4096 (bytes)"))
}

/// Returns by how many bits a unit of sizes shifts; `None` if `unit` is not one.
pub(crate) fn shift(unit: &str) -> Option<u32> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    })
}

fn of_seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST)
}

/// Splits `text` behind the leading characters that match `of`.
fn split(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, millis) in [
            ("5", 5_000),
            ("5s", 5_000),
            ("500ms", 500),
            ("1m", 60_000),
            ("0.5", 500),
            ("1.5m", 90_000),
            ("2 min", 120_000),
            ("1m30s", 90_000),
            ("1h 1s", 3_601_000),
            ("1d", 86_400_000),
            ("0", 0),
            (" 10 ", 10_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in
            ["", " ", "s", "-1", "1e3", "inf", "nan", "5x", "5 s 3", "1..2s", "99999999999d", "1m-1s", "٣"]
        {
            let error = duration(bad).unwrap_err();
            assert!(error.contains("is not a time, as in 5 (seconds), 500ms"), "{bad}: {error}");
        }
        assert!(positive_duration("0ms").is_err());
        let within = |text| duration_between(text, Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(within("500ms").unwrap_err(), "'500ms' is less than 1s");
        assert_eq!(within("2m").unwrap_err(), "'2m' is more than 60s");
        assert_eq!(within("2"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, value) in [
            ("4096", 4096),
            ("64k", 65536),
            ("64kB", 65536),
            ("2MiB", 2 << 20),
            ("1g", 1 << 30),
            ("1T", 1 << 40),
            ("5b", 5),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for bad in ["", "M", "-1", "1X", "2Mbb", "1.5G", "99999999999999999999G"] {
            assert!(bytes(bad).unwrap_err().contains("is not a size, as in 64k"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_quantity_or_refused(text in "[0-9.]{0,20} ?[a-zA-Zµ]{0,3}\\PC{0,6}") {
            let _ = duration(&text);
            let _ = bytes(&text);
        }
    }
}
