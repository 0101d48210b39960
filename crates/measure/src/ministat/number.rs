// SPDX-License-Identifier: Apache-2.0
//! Numbers as printf(3) writes them with `%g`.

/// Writes `value` with this number of significant digits, as `%.{digits}g` does: without zeros at the
/// end, and with an exponent where the number would be long without one.
pub fn general(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        // Debug writes "inf" and "NaN"; C writes lower case.
        return format!("{value:?}").to_lowercase();
    }
    let scientific = format!("{value:.*e}", digits.saturating_sub(1));
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..digits as i32).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        return without_zeros(&format!("{value:.decimals$}")).to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What printf(3) of glibc 2.36 writes.
    #[test]
    fn as_printf() {
        for (value, six, eight) in [
            (0.0, "0", "0"),
            (-0.0, "-0", "-0"),
            (240.0, "240", "240"),
            (212.215_333, "212.215", "212.21533"),
            (0.001_516_575_1, "0.00151658", "0.0015165751"),
            (0.000_099_999_999, "0.0001", "9.9999999e-05"),
            (0.000_012_345_678_9, "1.23457e-05", "1.2345679e-05"),
            (999_999.5, "1e+06", "999999.5"),
            (123_456_789.0, "1.23457e+08", "1.2345679e+08"),
            (100_000_000.0, "1e+08", "1e+08"),
            (-36_105.6, "-36105.6", "-36105.6"),
            (1e-300, "1e-300", "1e-300"),
            (f64::MAX, "1.79769e+308", "1.7976931e+308"),
            (f64::INFINITY, "inf", "inf"),
            (f64::NAN, "nan", "nan"),
        ] {
            assert_eq!((general(value, 6).as_str(), general(value, 8).as_str()), (six, eight), "{value}");
        }
    }
}
