// SPDX-License-Identifier: Apache-2.0
//! The options of the preload, in the words of `hugelift run`. A test of the command (`cli/src/run.rs`,
//! `the_words_of_the_preload_mean_the_same`) compares what both make of the same words.

use crate::options::Options;
use hugelift_core::policy::{self, Backing, PageChoice};
use hugelift_core::quantity;
use hugelift_core::snapshot::Part;

/// How much is written to stderr, each including what the one before writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verbosity {
    /// Nothing.
    Quiet,
    /// What was not lifted although it might have been.
    Problems,
    /// Also what was lifted.
    Summary,
}

/// Reads words as `--parts text --backing thp`. A word ends at white space.
///
/// # Errors
/// A line that names the word.
pub fn parse(words: &str) -> Result<(Options, Verbosity), String> {
    let mut options = Options::new();
    let mut verbosity = Verbosity::Problems;
    let mut words = words.split_ascii_whitespace();
    while let Some(word) = words.next() {
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match name {
            "-q" | "--quiet" => verbosity = Verbosity::Quiet,
            "-v" | "-vv" | "--verbose" => verbosity = Verbosity::Summary,
            // What these mean is so anyhow: copies are made at once.
            "--eager" => {}
            _ => {
                let value = value.take().or_else(|| words.next());
                options = apply(options, name, value)?;
            }
        }
    }
    // Data is lifted before main, where the process has one thread. That is checked.
    Ok((options.one_thread(), verbosity))
}

/// Applies an option that has a value.
fn apply(mut options: Options, name: &str, value: Option<&str>) -> Result<Options, String> {
    const KNOWN: &str = "known here: --parts, --backing, --page-size, --spare, --object, --exclude, --span inner, --eager, -v, -q";
    let known = ["--parts", "--backing", "--page-size", "--spare", "--object", "--exclude", "--span"];
    if !known.contains(&name) {
        return Err(format!("unknown option {name:?}; {KNOWN}"));
    }
    let value = value.ok_or_else(|| format!("{name} needs a value"))?;
    let wrong = |why: String| format!("{name} {value:?}: {why}");
    match name {
        "--parts" => {
            options.parts =
                value.split(',').map(parts).collect::<Result<Vec<_>, _>>().map_err(wrong)?.concat()
        }
        "--backing" => options.backings = backings(value).map_err(wrong)?,
        "--page-size" if value == "auto" => options.page = PageChoice::Mixed,
        "--page-size" => options.page = PageChoice::Only(value.parse().map_err(wrong)?),
        "--spare" => options.spare = quantity::bytes(value).map_err(wrong)?,
        "--object" => options.objects.push(value.into()),
        "--exclude" => options.excluded.push(value.into()),
        // The first and the last huge page of a part reach over neighbours, which is safe only before anything has run.
        _ if value == "inner" => {}
        _ => return Err(wrong("a program that lifts itself has inner spans only".into())),
    }
    Ok(options)
}

fn parts(word: &str) -> Result<Vec<Part>, String> {
    Ok(match word {
        "text" => vec![Part::Text],
        "rodata" => vec![Part::Rodata],
        "data" => vec![Part::Relro, Part::Data],
        "bss" => vec![Part::Bss],
        "heap" => vec![Part::Heap],
        "stack" => vec![Part::Stack],
        // There is none at a start.
        "anon" => vec![Part::Anon],
        "shm" => vec![Part::Shm],
        "jit" => vec![Part::Jit],
        "all" => Part::ALL.to_vec(),
        _ => return Err("parts are text, rodata, data, bss, heap, stack, anon, shm, jit, all".into()),
    })
}

fn backings(word: &str) -> Result<Vec<Backing>, String> {
    Ok(match word {
        "auto" => policy::AUTO.to_vec(),
        "pagecache" => vec![Backing::Pagecache],
        "shared" => vec![Backing::Shared],
        "thp" => vec![Backing::Thp],
        "hugetlb" => vec![Backing::Hugetlb],
        _ => return Err("backings are auto, pagecache, shared, thp, hugetlb".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_refused_by_name() {
        let (options, verbosity) =
            parse("--parts text,data --backing=thp\n --object a* -v").expect("known words");
        assert_eq!(options.parts, [Part::Text, Part::Relro, Part::Data]);
        assert_eq!((options.backings.as_slice(), verbosity), (&[Backing::Thp][..], Verbosity::Summary));
        assert_eq!(options.objects, ["a*"]);
        let (options, verbosity) = parse("").expect("nothing is allowed");
        assert_eq!((options.parts, verbosity), (vec![Part::Text, Part::Rodata], Verbosity::Problems));
        for (words, named) in [
            ("--part text", "--part"),
            ("--parts txt", "txt"),
            ("--parts", "--parts needs a value"),
            ("--backing huge", "huge"),
            ("--page-size 3", "--page-size"),
            ("--span outer", "outer"),
            ("text", "text"),
        ] {
            let why = parse(words).expect_err(words);
            assert!(why.contains(named), "{words}: {why}");
        }
    }
}
