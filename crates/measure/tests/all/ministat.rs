// SPDX-License-Identifier: Apache-2.0
//! The published examples of ministat(1), and any samples at all.

use hugelift_measure::ministat::{Confidence, Layout, MOST_SAMPLES, Sample, Show, text};
use proptest::prelude::*;

fn sample(name: &str, values: &[f64]) -> Sample {
    let lines: String = values.iter().map(|value| format!("{value}\n")).collect();
    Sample::parse(name, &lines, &Layout::default()).expect("numbers")
}

/// The first example of FreeBSD's README of ministat. The README has no data; only these values give the
/// figures that it prints.
#[test]
fn readme_nothing_proven() {
    let before = sample("_1", &[36060.0, 36093.0, 36107.0, 36130.0, 36138.0]);
    let after = sample("_2", &[36084.0, 36094.0, 36163.0, 36185.0, 36187.0]);
    let expected = "\
x _1
+ _2
+--------------------------------------------------------------------------+
|x            +    x+      x            x   x             +           ++   |
|        |_________|______AM_______________|__A___________M_______________||
+--------------------------------------------------------------------------+
    N           Min           Max        Median           Avg        Stddev
x   5         36060         36138         36107       36105.6     31.165686
+   5         36084         36187         36163       36142.6     49.952978
No difference proven at 95.0% confidence
";
    assert_eq!(text(&[before, after], &Show::default()), expected);
}

/// The second example, likewise.
#[test]
fn readme_a_clear_difference() {
    let before = sample("_1", &[0.133, 0.135, 0.136, 0.136, 0.137]);
    let after = sample("_2", &[0.139, 0.139, 0.139, 0.140, 0.140]);
    let expected = "\
x _1
+ _2
+--------------------------------------------------------------------------+
|                                                               +          |
|                               x                               +         +|
|x                    x         x          x                    +         +|
|         |_______________A_____M_________|                   |_M___A____| |
+--------------------------------------------------------------------------+
    N           Min           Max        Median           Avg        Stddev
x   5         0.133         0.137         0.136        0.1354  0.0015165751
+   5         0.139          0.14         0.139        0.1394 0.00054772256
Difference at 95.0% confidence
\t0.004 +/- 0.00166288
\t2.95421% +/- 1.26027%
\t(Student's t, pooled s = 0.00114018)
";
    assert_eq!(text(&[before, after], &Show::default()), expected);
}

/// Both examples of ministat(1); the data are files of its source. The program prints the table wider
/// than the page shows it.
#[test]
fn manual_page() {
    let iguana = sample("iguana", &[50.0, 200.0, 150.0, 400.0, 750.0, 400.0, 150.0]);
    let chameleon = sample("chameleon", &[150.0, 400.0, 720.0, 500.0, 930.0]);
    let samples = [iguana, chameleon];
    let expected = |verdict: &str| {
        format!(
            "\
x iguana
+ chameleon
+------------------------------------------------------------+
|x      *  x            *      +              + x           +|
| |________M______A_______________|                          |
|             |________________M__A___________________|      |
+------------------------------------------------------------+
    N           Min           Max        Median           Avg        Stddev
x   7            50           750           200           300     238.04761
+   5           150           930           500           540     299.08193
{verdict}"
        )
    };
    let mut show = Show { plot: Some(60), separate: true, ..Show::default() };
    assert_eq!(text(&samples, &show), expected("No difference proven at 95.0% confidence\n"));
    show.confidence = Confidence::from_percent(80.0).expect("a level");
    let proven = "Difference at 80.0% confidence\n\t240 +/- 212.215\n\t80% +/- 102.3%\n\
                  \t(Student's t, pooled s = 264.159)\n";
    assert_eq!(text(&samples, &show), expected(proven));
}

#[test]
fn equal_values_have_no_plot() {
    let shown = text(&[sample("a", &[5.0; 3])], &Show::default());
    assert_eq!(shown.lines().nth(1), Some("[no plot, span is zero width]"), "{shown}");
    let huge = text(&[sample("a", &[-f64::MAX, 0.0, f64::MAX])], &Show::default());
    assert_eq!(huge.lines().nth(1), Some("[no plot, span is zero width]"), "{huge}");
}

proptest! {
    /// For any numbers and any width the lines of the plot have the width of its frame.
    #[test]
    fn plots_stay_in_their_frame(
        values in prop::collection::vec(prop::collection::vec(any::<f64>().prop_filter("finite", |v| v.is_finite()), 3..20), 1..=MOST_SAMPLES),
        width in 2usize..200,
        separate in any::<bool>(),
    ) {
        let samples: Vec<Sample> = values.iter().map(|values| sample("s", values)).collect();
        let shown = text(&samples, &Show { plot: Some(width), separate, ..Show::default() });
        let edge = format!("+{}+", "-".repeat(width));
        let inside: Vec<&str> = shown.lines().skip_while(|l| *l != edge).skip(1).take_while(|l| *l != edge).collect();
        for line in &inside {
            prop_assert!(line.chars().count() == width + 2 && line.starts_with('|') && line.ends_with('|'), "{shown}");
        }
        let heads = shown.lines().filter(|line| line.trim_start().starts_with("N ")).count();
        prop_assert_eq!(heads, 1);
        prop_assert!(!inside.is_empty() || shown.contains("[no plot"), "{}", shown);
    }

    /// Any text is a sample or an error that names the column.
    #[test]
    fn any_text(content in "[ -~\\n\\t\u{e4}]{0,200}", column in 0usize..5, delimiters in "[ ,;\\t]{0,3}") {
        match Sample::parse("x", &content, &Layout { column, delimiters }) {
            Ok(sample) => prop_assert!(sample.values().len() >= 3 && sample.values().is_sorted()),
            Err(error) => prop_assert!(error.to_string().contains("column")),
        }
    }
}
