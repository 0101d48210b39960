// SPDX-License-Identifier: Apache-2.0
//! A sample: read from a text, and its figures.

/// The fewest values that a sample needs.
pub const FEWEST_VALUES: usize = 3;

/// Where the numbers are in a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Counted from 1.
    pub column: usize,
    /// Characters that separate columns; several in a row count as one.
    pub delimiters: String,
}

impl Default for Layout {
    /// Returns the first column of those that blanks and tabs separate.
    fn default() -> Layout {
        Layout { column: 1, delimiters: " \t".into() }
    }
}

/// Why a text is not a sample.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SampleError {
    /// Something other than a number.
    #[error("line {line}, column {column}: {value:?} is not a number")]
    NoNumber {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The text in its place.
        value: String,
    },
    /// Too few numbers to compute their deviation.
    #[error("{count} numbers in column {column}, and a sample needs at least {FEWEST_VALUES}")]
    TooFew {
        /// How many there are.
        count: usize,
        /// Counted from 1.
        column: usize,
    },
}

/// Some measured values of one thing.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    name: String,
    /// In ascending order, all finite, at least [`FEWEST_VALUES`].
    values: Vec<f64>,
    /// Summed up in the order in which they were read, as the original does: the last digit depends on it.
    sum: f64,
}

impl Sample {
    /// Reads the numbers of one column of a text. Lines without this column are skipped; a column that
    /// begins with `#` ends its line.
    ///
    /// # Errors
    /// The column holds something else than a finite number, or too few numbers.
    pub fn parse(name: impl Into<String>, text: &str, layout: &Layout) -> Result<Sample, SampleError> {
        let column = layout.column;
        let mut values = Vec::new();
        for (line, content) in text.lines().enumerate() {
            let words = content.trim_end().split(|c| layout.delimiters.contains(c));
            let mut words = words.filter(|word| !word.is_empty()).take_while(|word| !word.starts_with('#'));
            let Some(word) = words.nth(column.saturating_sub(1)) else { continue };
            let value = word.trim().parse().ok().filter(|value: &f64| value.is_finite());
            values.push(value.ok_or_else(|| SampleError::NoNumber {
                line: line + 1,
                column,
                value: word.chars().take(40).collect(),
            })?);
        }
        if values.len() < FEWEST_VALUES {
            return Err(SampleError::TooFew { count: values.len(), column });
        }
        let sum = values.iter().sum();
        values.sort_by(f64::total_cmp);
        Ok(Sample { name: name.into(), values, sum })
    }

    /// Returns the name that is shown above the plot.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the values in ascending order.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns how many values there are.
    pub fn count(&self) -> f64 {
        self.values.len() as f64
    }

    /// Returns the least value.
    pub fn min(&self) -> f64 {
        self.values[0]
    }

    /// Returns the greatest value.
    pub fn max(&self) -> f64 {
        self.values[self.values.len() - 1]
    }

    /// Returns the value in the middle; of an even number of values the upper one.
    pub fn median(&self) -> f64 {
        self.values[self.values.len() / 2]
    }

    /// Returns the arithmetic mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.count()
    }

    /// Estimates the variance of the distribution (divides by n - 1).
    pub(super) fn variance(&self) -> f64 {
        let mean = self.mean();
        self.values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (self.count() - 1.0)
    }

    /// Returns the standard deviation.
    pub fn deviation(&self) -> f64 {
        self.variance().sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, column: usize, delimiters: &str) -> Result<Vec<f64>, SampleError> {
        let layout = Layout { column, delimiters: delimiters.into() };
        Sample::parse("x", text, &layout).map(|sample| sample.values)
    }

    #[test]
    fn a_column_of_numbers() {
        for (text, column, delimiters) in [
            ("3\n1\n2\n", 1, " \t"),
            ("# head\n\n  1 # note\n2\t7\n+3.0", 1, " \t"),
            ("9 1\r\n9 2\r\nonly\n9   3e0 4\r\n", 2, " \t"),
            ("a,1\nb,, 2\nc,3,d\n", 2, ","),
            ("a;1\nb,2\n;,c;,3", 2, ",;"),
        ] {
            assert_eq!(parse(text, column, delimiters), Ok(vec![1.0, 2.0, 3.0]), "{text:?}");
        }
    }

    #[test]
    fn errors_name_line_column_and_value() {
        let no_number =
            |line, column, value: &str| Err(SampleError::NoNumber { line, column, value: value.into() });
        assert_eq!(parse("1\n2\n3x\n", 1, " "), no_number(3, 1, "3x"));
        assert_eq!(parse("1 a\n", 2, " "), no_number(1, 2, "a"));
        for value in ["inf", "-inf", "nan", "1e999", "--1", "0,5"] {
            assert_eq!(parse(&format!("1\n{value}\n"), 1, " "), no_number(2, 1, value));
        }
        assert_eq!(parse("1\n2\n", 1, " "), Err(SampleError::TooFew { count: 2, column: 1 }));
        assert_eq!(parse("1\n2\n3\n", 2, " "), Err(SampleError::TooFew { count: 0, column: 2 }));
    }

    #[test]
    fn small_differences_of_large_values_are_seen() {
        let sample = Sample::parse("x", "1000000001\n1000000002\n1000000003\n", &Layout::default()).unwrap();
        assert_eq!((sample.mean(), sample.deviation()), (1_000_000_002.0, 1.0));
    }
}
