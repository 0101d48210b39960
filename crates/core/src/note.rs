// SPDX-License-Identifier: Apache-2.0
//! What hugelift records about an object in each run: which pages of it were touched, and how much CPU
//! time the program took.
//!
//! ```text
//!   stated addresses   |--64 kB--|--64 kB--|--64 kB--|--64 kB--|    granules
//!   touched            |    1    |    0    |    0    |    1    |    one bit each, as hexadecimal
//!   huge pages         |.......seen........|........seen.......|    any granule in them
//! ```
//!
//! Granules are ranges of stated addresses, so that a note is valid wherever the object is loaded. They
//! have 64 kB because the kernel shows touches no finer: a fault on a file's page also maps its
//! neighbours in the cache (`fault_around_bytes`, mm/memory.c, `do_fault_around`).

use crate::addr::{Addr, PageSize, Range};
use crate::record::Identity;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Version of the form.
pub const VERSION: u32 = 1;
/// No note is longer, in bytes.
pub const MAX_BYTES: u64 = 64 << 10;
/// Bytes of an object that one bit stands for.
pub const GRANULE: u64 = 64 << 10;
/// Bytes of bits: 8 GB of an object.
const MAX_BITS: usize = 16 << 10;
/// What one byte of bits stands for.
const SPAN_OF_BYTE: u64 = 8 * GRANULE;
/// A program that still runs when the observer stops counts as a run of this much CPU time: it may be a
/// server that is still idle.
pub const LIVED_ON: Duration = Duration::from_secs(3600);
/// After this many runs the older ones count half.
const HALVED_AFTER: u32 = 64;
/// After this many recorded runs a program is known.
const KNOWN: u32 = 8;
/// Every 16th run of a known program is recorded.
const RECORD_EVERY: u32 = 16;

/// What past runs have shown of one object's file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Note {
    /// [`VERSION`].
    pub version: u32,
    /// The object, as `/proc/PID/maps` named it.
    #[serde(with = "crate::path_json")]
    pub path: PathBuf,
    /// Its file, as it was then. The note is not valid for another file, or after a change of this one.
    pub source: Identity,
    /// The runs of which it was the executable.
    pub lives: Lives,
    /// What was touched of its text and rodata; `None` if that was not recorded.
    pub touched: Option<Touched>,
}

/// Why bytes are not a valid note.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoteError {
    /// Not the JSON that hugelift writes.
    #[error("not a note: {0}")]
    Form(String),
    /// Another version of hugelift wrote it.
    #[error("a note of version {0}, this is version {VERSION}")]
    Version(u32),
    /// It has CPU time but no runs.
    #[error("a note of {0} µs in no run")]
    NoRuns(u64),
}

impl Note {
    /// Returns the note of a file of which nothing is known yet.
    pub fn new(path: PathBuf, source: Identity) -> Note {
        Note { version: VERSION, path, source, lives: Lives::default(), touched: None }
    }

    /// Reads what [`Note::to_json`] wrote.
    ///
    /// # Errors
    /// Returns a [`NoteError`] if it is not a valid note.
    pub fn parse(json: &[u8]) -> Result<Note, NoteError> {
        let note: Note = serde_json::from_slice(json).map_err(|e| NoteError::Form(e.to_string()))?;
        match &note {
            Note { version, .. } if *version != VERSION => Err(NoteError::Version(*version)),
            Note { lives: Lives { runs: 0, cpu_us: cpu @ 1.. }, .. } => Err(NoteError::NoRuns(*cpu)),
            _ => Ok(note),
        }
    }

    /// Returns the note as JSON.
    ///
    /// # Errors
    /// Returns [`NoteError::Form`] if a field has no form in JSON; all have one.
    pub fn to_json(&self) -> Result<Vec<u8>, NoteError> {
        serde_json::to_vec(self).map_err(|e| NoteError::Form(e.to_string()))
    }

    /// Adds a run that took `life` of CPU time, and what was seen of this object in one.
    pub fn add(&mut self, life: Option<Duration>, touched: Option<&Touched>) {
        if let Some(life) = life {
            self.lives.add(life);
        }
        if let Some(touched) = touched {
            self.touched.get_or_insert_default().merge(touched);
        }
    }
}

/// The number of runs, and the CPU time that they took. A copy is weighed against their mean, because
/// what many runs gain, and what their copies cost, are both sums over the runs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lives {
    /// Number of runs.
    pub runs: u32,
    /// Their CPU time together, in microseconds.
    pub cpu_us: u64,
}

impl Lives {
    fn add(&mut self, cpu: Duration) {
        if self.runs >= HALVED_AFTER {
            (self.runs, self.cpu_us) = (self.runs / 2, self.cpu_us / 2);
        }
        self.runs += 1;
        let cpu = u64::try_from(cpu.min(LIVED_ON).as_micros()).unwrap_or(u64::MAX);
        self.cpu_us = self.cpu_us.saturating_add(cpu);
    }

    /// Returns the mean CPU time of a run; `None` if there was no run.
    pub fn mean(self) -> Option<Duration> {
        Some(Duration::from_micros(self.cpu_us.checked_div(u64::from(self.runs))?))
    }

    /// Returns whether the run of process `pid` is recorded: each of the first 8, then every 16th.
    pub fn wants_more(self, pid: u32) -> bool {
        self.runs < KNOWN || pid.is_multiple_of(RECORD_EVERY)
    }
}

/// A set of granules.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub struct Touched {
    /// Number of the granule that the first bit stands for, divided by eight.
    first: u64,
    /// Eight granules a byte, the lowest bit first. Neither the first nor the last is 0.
    bits: Vec<u8>,
}

/// The form in JSON.
#[derive(Serialize, Deserialize)]
struct Form {
    /// Stated address of the first granule.
    from: u64,
    /// The bits, as hexadecimal.
    bits: String,
}

impl TryFrom<Form> for Touched {
    type Error = String;

    fn try_from(form: Form) -> Result<Touched, String> {
        let (text, len) = (form.bits.as_bytes(), form.bits.len());
        if len % 2 != 0 || len / 2 > MAX_BITS || !form.from.is_multiple_of(SPAN_OF_BYTE) {
            return Err(format!("{len} digits of bits from {:#x}", form.from));
        }
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bits: Option<Vec<u8>> = text.chunks_exact(2).map(byte).collect();
        let mut touched =
            Touched { first: form.from / SPAN_OF_BYTE, bits: bits.ok_or("bits that are not hexadecimal")? };
        touched.trim();
        Ok(touched)
    }
}

impl From<Touched> for Form {
    fn from(touched: Touched) -> Form {
        let bits = touched.bits.iter().map(|byte| format!("{byte:02x}")).collect();
        Form { from: touched.first * SPAN_OF_BYTE, bits }
    }
}

impl Touched {
    /// Adds all granules that hold some of the `bytes` bytes from the stated address `vaddr` on. Leaves
    /// out those that are further from the others than the bits of a note reach.
    pub fn mark(&mut self, vaddr: u64, bytes: u64) {
        let Some(last) = bytes.checked_sub(1).map(|n| vaddr.saturating_add(n) / GRANULE) else { return };
        let first = vaddr / GRANULE;
        for granule in first..=last.min(first + 8 * MAX_BITS as u64) {
            self.set(granule / 8, 1 << (granule % 8));
        }
    }

    /// Adds what is in `other`.
    pub fn merge(&mut self, other: &Touched) {
        for (at, bits) in (other.first..).zip(&other.bits).filter(|(_, bits)| **bits != 0) {
            self.set(at, *bits);
        }
    }

    fn set(&mut self, at: u64, bits: u8) {
        if self.bits.is_empty() {
            self.first = at;
        }
        let end = (self.first + self.bits.len() as u64).max(at + 1);
        let start = self.first.min(at);
        if end - start > MAX_BITS as u64 {
            return;
        }
        let before = (self.first - start) as usize;
        self.bits.splice(0..0, std::iter::repeat_n(0, before));
        self.bits.resize((end - start) as usize, 0);
        self.first = start;
        self.bits[(at - start) as usize] |= bits;
    }

    fn trim(&mut self) {
        let zeros = self.bits.iter().take_while(|b| **b == 0).count();
        self.bits.drain(..zeros);
        let used = self.bits.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        self.bits.truncate(used);
        self.first = if used == 0 { 0 } else { self.first + zeros as u64 };
    }

    /// Returns whether any of these bytes lies in a granule of the set.
    pub fn holds(&self, vaddr: u64, bytes: u64) -> bool {
        let Some(last) = bytes.checked_sub(1).map(|n| vaddr.saturating_add(n) / GRANULE) else {
            return false;
        };
        // Granules outside the bits are not in the set.
        let from = (vaddr / GRANULE).max(self.first * 8);
        let to = last.min((self.first + self.bits.len() as u64) * 8);
        (from..=to).any(|granule| {
            let byte = granule.checked_sub(self.first * 8).map_or(0, |n| n / 8);
            self.bits.get(byte as usize).is_some_and(|bits| bits & 1 << (granule % 8) != 0)
        })
    }

    /// Returns the bytes of all granules in it.
    pub fn bytes(&self) -> u64 {
        self.bits.iter().map(|b| u64::from(b.count_ones())).sum::<u64>() * GRANULE
    }

    /// Returns those pages of `range` that were touched, neighbours joined. `range` consists of whole
    /// pages of an object that is loaded with `bias`.
    pub fn seen(&self, range: Range, bias: u64, page: PageSize) -> Vec<Range> {
        let mut seen: Vec<Range> = Vec::new();
        for at in (range.start.0..range.end.0).step_by(page.bytes() as usize) {
            let end = at.saturating_add(page.bytes()).min(range.end.0);
            if !self.holds(at.wrapping_sub(bias), end - at) {
                continue;
            }
            match seen.last_mut() {
                Some(last) if last.end.0 == at => last.end.0 = end,
                _ => seen.push(Range { start: Addr(at), end: Addr(end) }),
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB2: u64 = 2 << 20;

    fn note() -> Note {
        let source = Identity { device: 1, inode: 2, bytes: 3, modified: (4, 5), changed: (6, 7) };
        let mut note = Note::new("/bin/x".into(), source);
        let mut touched = Touched::default();
        touched.mark(0x41_0000, 1);
        touched.mark(0x80_ffff, 2);
        note.add(Some(Duration::from_millis(30)), Some(&touched));
        note.add(Some(Duration::from_millis(10)), None);
        note
    }

    #[test]
    fn what_is_written_is_read() {
        let json = note().to_json().unwrap();
        assert_eq!(Note::parse(&json).unwrap(), note());
        assert!(String::from_utf8(json.clone()).unwrap().contains(r#""bits":"0200000000000000"#));
        for cut in 0..json.len() {
            assert!(matches!(Note::parse(&json[..cut]), Err(NoteError::Form(_))), "{cut}");
        }
        assert_eq!(note().lives.mean(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |from: &str, to: &str| {
            let json = String::from_utf8(note().to_json().unwrap()).unwrap();
            assert!(json.contains(from), "{json}");
            Note::parse(json.replace(from, to).as_bytes()).unwrap_err()
        };
        assert_eq!(refused(r#""version":1"#, r#""version":2"#), NoteError::Version(2));
        assert_eq!(refused(r#""runs":2"#, r#""runs":0"#), NoteError::NoRuns(40_000));
        let far = format!(r#""bits":"{}"#, "0".repeat(2 * MAX_BITS + 2));
        for bits in [r#""bits":"0"#, r#""bits":"zz"#, r#""bits":"éé"#, far.as_str()] {
            assert!(matches!(refused(r#""bits":""#, bits), NoteError::Form(_)), "{bits}");
        }
        assert!(matches!(refused(r#""from":"#, r#""from":1"#), NoteError::Form(_)));
    }

    #[test]
    fn any_granule_of_a_huge_page_counts() {
        let touched = note().touched.unwrap();
        assert_eq!(touched.bytes(), 3 * GRANULE);
        for (vaddr, bytes, held) in [
            (0x40_0000, 0x1_0000, false),
            (0x40_0000, 0x1_0001, true),
            (0x41_ffff, 1, true),
            (0x42_0000, 0x3e_0000, false),
            (0x80_0000, 1, true),
            (0x82_0000, u64::MAX, false),
            (0, u64::MAX, true),
            (0x41_0000, 0, false),
        ] {
            assert_eq!(touched.holds(vaddr, bytes), held, "{vaddr:#x} {bytes:#x}");
        }
        let range = |a: u64, b: u64| Range { start: Addr(a * MB2), end: Addr(b * MB2) };
        // At stated addresses, and two huge pages higher.
        assert_eq!(touched.seen(range(1, 9), 0, PageSize::MB2), [range(2, 3), range(4, 5)]);
        assert_eq!(touched.seen(range(1, 9), 2 * MB2, PageSize::MB2), [range(4, 5), range(6, 7)]);
        assert_eq!(touched.seen(range(3, 4), 0, PageSize::MB2), []);
        let mut more = touched.clone();
        more.mark(3 * MB2, MB2);
        assert_eq!(more.seen(range(0, 9), 0, PageSize::MB2), [range(2, 5)]);
    }

    #[test]
    fn what_is_too_far_away_is_left_out() {
        let mut touched = Touched::default();
        touched.mark(1 << 40, 1);
        let alone = touched.clone();
        touched.mark(0, 1);
        touched.mark(u64::MAX, u64::MAX);
        assert_eq!(touched, alone);
        touched.mark((1 << 40) + 1, u64::MAX);
        assert!(touched.bytes() <= 8 * MAX_BITS as u64 * GRANULE);
        let mut whole = note();
        whole.add(None, Some(&touched));
        assert!(whole.to_json().unwrap().len() < MAX_BYTES as usize);
    }

    #[test]
    fn old_lives_fade() {
        let mut lives = Lives::default();
        assert!(lives.mean().is_none() && lives.wants_more(1));
        for _ in 0..1000 {
            lives.add(Duration::from_secs(1));
        }
        assert_eq!(lives.mean(), Some(Duration::from_secs(1)));
        assert!(!lives.wants_more(1) && lives.wants_more(32));
        for _ in 0..500 {
            lives.add(Duration::ZERO);
        }
        assert!(lives.mean() < Some(Duration::from_millis(1)));
        // One server among a thousand short runs still shows.
        lives.add(Duration::MAX);
        assert!(lives.mean() >= Some(LIVED_ON / HALVED_AFTER));
    }
}
