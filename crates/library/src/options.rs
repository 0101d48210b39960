// SPDX-License-Identifier: Apache-2.0
//! What a program asks for.

use crate::error::Error;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::policy::{self, Backing, Copies, ObjectFilter, PageChoice, Policy, SpanChoice};
use hugelift_core::snapshot::Part;

/// What to lift, and onto what. [`Options::default`] lifts text and read-only data of the program and of its shared
/// objects, as `hugelift run` does.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) parts: Vec<Part>,
    pub(crate) backings: Vec<Backing>,
    pub(crate) page: PageChoice,
    pub(crate) spare: u64,
    pub(crate) objects: Vec<String>,
    pub(crate) excluded: Vec<String>,
    pub(crate) within: Option<Range>,
    pub(crate) one_thread: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            parts: vec![Part::Text, Part::Rodata],
            backings: policy::AUTO.to_vec(),
            page: PageChoice::Usual,
            spare: 0,
            objects: Vec::new(),
            excluded: Vec::new(),
            within: None,
            one_thread: false,
        }
    }
}

impl Options {
    /// Returns the options without any choice made.
    pub fn new() -> Options {
        Options::default()
    }

    /// Lifts these parts. [`Part::Data`] and [`Part::Relro`] also need [`Options::one_thread`].
    #[must_use]
    pub fn parts(mut self, parts: &[Part]) -> Options {
        self.parts = parts.to_vec();
        self
    }

    /// Takes huge pages for text and read-only data from here alone.
    #[must_use]
    pub fn backing(mut self, backing: Backing) -> Options {
        self.backings = vec![backing];
        self
    }

    /// Uses pages of this size alone.
    #[must_use]
    pub fn page_size(mut self, page: PageSize) -> Options {
        self.page = PageChoice::Only(page);
        self
    }

    /// Lets copies take this many bytes where a control group limits the memory of the program.
    #[must_use]
    pub fn spare(mut self, bytes: u64) -> Options {
        self.spare = bytes;
        self
    }

    /// Lifts only objects whose path or file name matches this shell pattern, or another that is given.
    #[must_use]
    pub fn object(mut self, pattern: &str) -> Options {
        self.objects.push(pattern.into());
        self
    }

    /// Does not lift objects whose path or file name matches this shell pattern.
    #[must_use]
    pub fn exclude(mut self, pattern: &str) -> Options {
        self.excluded.push(pattern.into());
        self
    }

    /// Lifts only what lies at these addresses.
    #[must_use]
    pub fn within(mut self, addresses: std::ops::Range<usize>) -> Options {
        let (start, end) = (Addr(addresses.start as u64), Addr(addresses.end as u64));
        // An empty range holds nothing, and none at all would hold everything.
        self.within = Some(Range::new(start, end).unwrap_or_default());
        self
    }

    /// States that the process has one thread, and that nothing else writes to its data: no other process by shared
    /// memory, no asynchronous I/O. Then data may be replaced. The number of threads is checked.
    #[must_use]
    pub fn one_thread(mut self) -> Options {
        self.one_thread = true;
        self
    }

    /// Returns whether parts are asked for that must not be written to while they are lifted.
    pub(crate) fn takes_data(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Data | Part::Relro))
    }

    /// Returns whether nothing but whole huge pages of the usual size in read-only parts of files are wanted.
    pub(crate) fn lifts_files_alone(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text | Part::Rodata))
            && self.page == PageChoice::Usual
    }

    /// Returns the policy for the planner.
    ///
    /// # Errors
    /// [`Error::Pattern`]
    pub fn policy(&self) -> Result<Policy, Error> {
        let objects = ObjectFilter::new(&self.objects, &self.excluded).map_err(Error::Pattern)?;
        Ok(Policy {
            parts: self.parts.clone(),
            objects,
            within: self.within,
            backings: self.backings.clone(),
            data_backings: vec![Backing::Thp],
            // Others were chosen for the moment at which only the loader has run.
            span: SpanChoice::Inner,
            page: self.page,
            placement: None,
            per_node: false,
            copies: Copies::All,
            spare: self.spare,
        })
    }
}
