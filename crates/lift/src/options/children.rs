// SPDX-License-Identifier: Apache-2.0
//! The options of children, as JSON in their environment: `{"version":1,"lift":{...}}`.
//!
//! A program may have changed the variable. It decides only what is lifted in programs of the same
//! user, and what cannot be read lifts nothing.

use super::{LiftOptions, Verbosity};
use hugelift_core::printable::{self, Escape};
use serde::{Deserialize, Serialize};

/// The version of what is written. One with other fields needs another number.
const VERSION: u64 = 1;

#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    lift: &'a LiftOptions,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    #[serde(rename = "version")]
    _version: u64,
    lift: LiftOptions,
}

/// The field that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

/// Why options of children cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not JSON, or has a field that is missing, unknown or wrong.
    #[error("no options of a lift: {}", .0.to_string().escaped())]
    Json(#[from] serde_json::Error),
    /// Another version of hugelift wrote it.
    #[error(
        "options of version {0}, and this hugelift reads version {VERSION}: \
         it is not the one that started the program"
    )]
    Version(u64),
}

impl LiftOptions {
    /// Returns the options for the children of a program that is lifted with these. What they write to
    /// stderr may be read by their parent: they write nothing unless the user asked for more.
    pub fn for_children(&self) -> LiftOptions {
        let LiftOptions { policy, touched, after_fork, perf_map, strict: _, verbosity } = self;
        LiftOptions {
            policy: policy.clone(),
            touched: *touched,
            after_fork: *after_fork,
            perf_map: *perf_map,
            // The start of a child that already runs cannot be refused.
            strict: false,
            verbosity: match verbosity {
                Verbosity::Quiet | Verbosity::Problems => Verbosity::Quiet,
                more => *more,
            },
        }
    }

    /// Writes the options as one line of JSON.
    ///
    /// # Errors
    /// Returns the errors of the serializer.
    pub fn to_json(&self) -> serde_json::Result<String> {
        printable::json(&Written { version: VERSION, lift: self })
    }

    /// Reads what [`LiftOptions::to_json`] wrote.
    ///
    /// # Errors
    /// Returns [`Unreadable`] if it is of another form or version.
    pub fn from_json(json: &str) -> Result<LiftOptions, Unreadable> {
        match serde_json::from_str::<Versioned>(json)?.version {
            VERSION => Ok(serde_json::from_str::<Read>(json)?.lift),
            other => Err(Unreadable::Version(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AfterFork, DataBacking, Numa, PolicyOptions, Touched};
    use super::*;
    use hugelift_core::addr::PageSize;
    use hugelift_core::demangle::Names;
    use hugelift_core::policy::{Backing, PageChoice, SpanChoice};
    use hugelift_core::snapshot::Part;
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    fn page_choices() -> impl Strategy<Value = PageChoice> {
        let size = (12..62u32).prop_map(|log| PageChoice::Only(PageSize::new(1 << log).unwrap()));
        prop_oneof![Just(PageChoice::Usual), Just(PageChoice::Mixed), size]
    }

    fn numa() -> impl Strategy<Value = Numa> {
        let on = (0..32u32, 32..64u32).prop_map(|(a, b)| Numa::On(format!("{a},{b}").parse().unwrap()));
        prop_oneof![Just(Numa::Local), Just(Numa::Interleave), on]
    }

    fn policies() -> impl Strategy<Value = PolicyOptions> {
        const PARTS: [Part; 8] = [
            Part::Text,
            Part::Rodata,
            Part::Relro,
            Part::Data,
            Part::Bss,
            Part::Heap,
            Part::Stack,
            Part::Anon,
        ];
        const BACKINGS: [Option<Backing>; 5] = [
            None,
            Some(Backing::Thp),
            Some(Backing::Hugetlb),
            Some(Backing::Pagecache),
            Some(Backing::Shared),
        ];
        let patterns = || prop::collection::vec(any::<String>(), 0..3);
        let spans = select(&[SpanChoice::Inner, SpanChoice::Outer, SpanChoice::Auto]);
        (
            select(&BACKINGS),
            page_choices(),
            subsequence(&PARTS, 0..=PARTS.len()),
            select(&[DataBacking::Thp, DataBacking::Hugetlb]),
            prop::option::of(numa()),
            any::<u64>(),
            spans,
            patterns(),
            patterns(),
        )
            .prop_map(
                |(backing, page, parts, data_backing, numa, spare, span, objects, excluded)| PolicyOptions {
                    backing,
                    page,
                    parts,
                    data_backing,
                    numa,
                    spare,
                    span,
                    objects,
                    excluded,
                },
            )
    }

    fn options() -> impl Strategy<Value = LiftOptions> {
        (
            policies(),
            select(&[None, Some(Touched::All), Some(Touched::Seen)]),
            select(&[AfterFork::Auto, AfterFork::Join, AfterFork::Leave]),
            select(&[None, Some(Names::Demangled), Some(Names::Mangled)]),
            any::<bool>(),
            select(&[Verbosity::Quiet, Verbosity::Problems, Verbosity::Summary, Verbosity::Everything]),
        )
            .prop_map(|(policy, touched, after_fork, perf_map, strict, verbosity)| LiftOptions {
                policy,
                touched,
                after_fork,
                perf_map,
                strict,
                verbosity,
            })
    }

    /// Returns whether the text is one line without control characters, and not too long to read.
    fn is_clear(line: &str) -> bool {
        !line.is_empty() && line.len() < 1000 && line.chars().all(|c| !c.is_control())
    }

    fn usual() -> LiftOptions {
        let policy = PolicyOptions {
            backing: None,
            page: PageChoice::Usual,
            parts: vec![Part::Text, Part::Rodata],
            data_backing: DataBacking::Thp,
            numa: None,
            spare: 0,
            span: SpanChoice::Inner,
            objects: Vec::new(),
            excluded: Vec::new(),
        };
        LiftOptions {
            policy,
            touched: None,
            after_fork: AfterFork::Auto,
            perf_map: None,
            strict: true,
            verbosity: Verbosity::Problems,
        }
    }

    #[test]
    fn children_are_silent_and_start_in_any_case() {
        let expected = LiftOptions { strict: false, verbosity: Verbosity::Quiet, ..usual() };
        assert_eq!(usual().for_children(), expected);
        let told = LiftOptions { verbosity: Verbosity::Everything, ..usual() };
        assert_eq!(told.for_children().verbosity, Verbosity::Everything);
    }

    #[test]
    fn what_is_written_is_this() {
        let expected = r#"{"version":1,"lift":{"policy":{"backing":null,"page":"usual","#.to_string()
            + r#""parts":["text","rodata"],"data_backing":"thp","numa":null,"spare":0,"span":"inner","#
            + r#""objects":[],"excluded":[]},"touched":null,"after_fork":"auto","perf_map":null,"#
            + r#""strict":true,"verbosity":"problems"}}"#;
        assert_eq!(usual().to_json().unwrap(), expected, "another form needs another version");
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let good = usual().to_json().unwrap();
        let with = |old: &str, new: &str| {
            assert!(good.contains(old), "{old}");
            good.replacen(old, new, 1)
        };
        for (json, what) in [
            (String::new(), "EOF"),
            ("--backing=thp".into(), "column 2"),
            ("[]".into(), "column 2"),
            ("[".repeat(100_000), "column"),
            (good[..good.len() - 1].into(), "EOF"),
            (with("\"version\":1", "\"version\":2"), "version 2, and this hugelift reads version 1"),
            (with("\"spare\":0,", ""), "missing field `spare`"),
            (with("\"spare\":0", "\"spare\":-1"), "-1"),
            (with("\"spare\":0", "\"spare\":0,\"exec\":\"/bin/sh\""), "unknown field `exec`"),
            (with("\"spare\"", "\"\\n\\u001b[2J\""), "unknown field `\\n\\x1b[2J`"),
            (with("\"usual\"", "{\"only\":12345}"), "12345 is not a page size"),
            (with("\"numa\":null", "\"numa\":{\"on\":\"70\"}"), "node 70"),
            (with("\"text\"", "\"kernel\""), "unknown variant `kernel`"),
            (with("\"strict\":true", "\"strict\":1"), "expected a boolean"),
        ] {
            let line = LiftOptions::from_json(&json).unwrap_err().to_string();
            assert!(line.contains(what) && is_clear(&line), "{json:.200}: {line}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(options in options()) {
            let json = options.to_json().unwrap();
            prop_assert!(json.chars().all(|c| !c.is_control()), "{}", json);
            prop_assert_eq!(LiftOptions::from_json(&json).unwrap(), options);
        }

        #[test]
        fn damage_gives_options_or_one_line(options in options(), at in any::<prop::sample::Index>(),
                                            byte in any::<char>(), cut in any::<bool>()) {
            let mut text: Vec<char> = options.to_json().unwrap().chars().collect();
            let at = at.index(text.len());
            if cut { text.truncate(at); } else { text[at] = byte; }
            if let Err(why) = LiftOptions::from_json(&text.into_iter().collect::<String>()) {
                let line = why.to_string();
                prop_assert!(!line.is_empty() && line.chars().all(|c| !c.is_control()), "{}", line);
            }
        }

        #[test]
        fn any_text_is_no_options(text in ".{0,200}") {
            prop_assert!(LiftOptions::from_json(&text).is_err());
        }
    }
}
