// SPDX-License-Identifier: Apache-2.0
//! Reads traces as `valgrind --tool=lackey --trace-mem=yes` writes them: an access a line, `I  04016b80,3` for an instruction,
//! ` L 1ffefff7e0,8`, ` S …` and ` M …` for a load, a store, and both at the same address (valgrind's manual, "Lackey").
//!
//! Messages of valgrind (`==PID== …`) may stand between them. Any other line is counted, since what a program prints may have
//! got into the same file.

use super::Side;

/// The longest line of a trace: two words, with sixteen and ten digits at most. What is longer is something else.
const LONGEST: usize = 32;

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// An instruction, or a load or store.
    pub side: Side,
    /// The first address.
    pub address: u64,
    /// How many bytes; at least one.
    pub bytes: u32,
}

/// What a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// An access.
    Access(Access),
    /// A message of valgrind, or an empty line.
    Message,
    /// Something else.
    Foreign,
}

/// Parses a line, without its end.
pub fn parse_line(line: &[u8]) -> Line {
    match access(line) {
        Some(access) => Line::Access(access),
        None if line.is_empty() || [&b"=="[..], b"--", b"**"].iter().any(|mark| line.starts_with(mark)) => {
            Line::Message
        }
        None => Line::Foreign,
    }
}

fn access(line: &[u8]) -> Option<Access> {
    if line.len() > LONGEST {
        return None;
    }
    let (kind, rest) = line.split_first_chunk::<3>()?;
    let side = match kind {
        b"I  " => Side::Code,
        b" L " | b" S " | b" M " => Side::Data,
        _ => return None,
    };
    let mut address: u64 = 0;
    let mut digits = 0;
    for byte in rest {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => break,
        };
        digits += 1;
        address = address << 4 | u64::from(digit);
    }
    if !(1..=16).contains(&digits) || *rest.get(digits)? != b',' {
        return None;
    }
    let size = &rest[digits + 1..];
    let bytes = match size {
        // Nearly all of them.
        &[digit @ b'1'..=b'9'] => u32::from(digit - b'0'),
        _ => long_size(size)?,
    };
    address.checked_add(u64::from(bytes) - 1)?;
    Some(Access { side, address, bytes })
}

/// Parses a size of several digits. No instruction accesses more than some kilobytes.
fn long_size(digits: &[u8]) -> Option<u32> {
    let number = |sum: u32, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0'));
    let value = (digits.len() <= 5).then(|| digits.iter().try_fold(0, number))??;
    (1..=1 << 16).contains(&value).then_some(value)
}

/// Finds the lines of a trace that arrives in pieces.
#[derive(Clone, Default, Debug)]
pub struct Reader {
    /// The beginning of a line whose end has not arrived, and whether more of it was left out.
    begun: Vec<u8>,
    is_long: bool,
    /// How many lines there were.
    pub lines: u64,
    /// How many of them were foreign.
    pub foreign: u64,
    /// The number of the first foreign line; the first line has 1.
    pub first_foreign: Option<u64>,
}

impl Reader {
    /// Takes the next bytes, and calls `each` with each access that is complete. If that returns false, it stops: what is left of
    /// the bytes is lost.
    pub fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(Access) -> bool) -> bool {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            let goes_on = if self.begun.is_empty() {
                self.line(line, each)
            } else {
                self.begin(line);
                self.end(each)
            };
            if !goes_on {
                return false;
            }
        }
        self.begin(rest);
        true
    }

    /// Takes the last line, if its end is missing.
    pub fn finish(&mut self, each: &mut impl FnMut(Access) -> bool) {
        if !self.begun.is_empty() {
            self.end(each);
        }
    }

    fn begin(&mut self, part: &[u8]) {
        let room = LONGEST - self.begun.len();
        self.begun.extend_from_slice(&part[..part.len().min(room)]);
        self.is_long |= part.len() > room;
    }

    fn end(&mut self, each: &mut impl FnMut(Access) -> bool) -> bool {
        if std::mem::take(&mut self.is_long) {
            // Messages are told by their first bytes, and no access is that long.
            self.begun.push(b' ');
        }
        let line = std::mem::take(&mut self.begun);
        let goes_on = self.line(&line, each);
        self.begun = line;
        self.begun.clear();
        goes_on
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(Access) -> bool) -> bool {
        self.lines += 1;
        match parse_line(line) {
            Line::Access(access) => return each(access),
            Line::Message => {}
            Line::Foreign => {
                self.foreign += 1;
                self.first_foreign.get_or_insert(self.lines);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> (Vec<Access>, Reader) {
        let mut reader = Reader::default();
        let mut all = Vec::new();
        let mut each = |access| {
            all.push(access);
            true
        };
        for piece in pieces {
            reader.feed(piece, &mut each);
        }
        reader.finish(&mut each);
        (all, reader)
    }

    const TRACE: &[u8] = b"==7== Lackey\nI  04016b80,3\n S 1ffefff7e0,8\n M 0421e040,4\nhello\n L 0421e040,32\n--7-- x\n\nI  0,15";

    #[test]
    fn a_trace() {
        let (all, reader) = read(&[TRACE]);
        let access = |side, address, bytes| Access { side, address, bytes };
        assert_eq!(
            all,
            [
                access(Side::Code, 0x0401_6b80, 3),
                access(Side::Data, 0x1f_feff_f7e0, 8),
                access(Side::Data, 0x0421_e040, 4),
                access(Side::Data, 0x0421_e040, 32),
                access(Side::Code, 0, 15),
            ]
        );
        assert_eq!((reader.lines, reader.foreign, reader.first_foreign), (9, 1, Some(5)));
    }

    #[test]
    fn what_is_no_access() {
        for line in [
            "I 04016b80,3",
            "I  ,3",
            "I  04016b80",
            "I  04016b80,",
            "I  04016b80,0",
            "I  04016b80,3 ",
            "I  4G,3",
            " X 04,4",
            " L 00000000000000001,4",
            " L ffffffffffffffff,2",
            " L 04,70000",
            " L 04,1000000",
            " L",
            "I",
            "instructions: 7",
            "I  0x4,3",
            " L 4,+3",
        ] {
            assert_eq!(parse_line(line.as_bytes()), Line::Foreign, "{line}");
        }
        assert!(matches!(parse_line(b" L ffffffffffffffff,1"), Line::Access(_)));
        assert_eq!(parse_line(b"==12== Command: x"), Line::Message);
        let long = format!("=={}", "x".repeat(100));
        let (all, reader) = read(&[long.as_bytes(), b"y\nI  04,3", &[b'0'; 50], b"\nI  04,1\n"]);
        assert_eq!((all.len(), reader.lines, reader.foreign), (1, 3, 1));
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let (mut reader, mut seen) = (Reader::default(), 0);
        let goes_on = reader.feed(TRACE, &mut |_| {
            seen += 1;
            seen < 2
        });
        assert!(!goes_on && seen == 2);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cuts in prop::collection::vec(0..TRACE.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([TRACE.len()]);
            let mut start = 0;
            let pieces: Vec<&[u8]> = ends.map(|end| { let piece = &TRACE[start..end]; start = end; piece }).collect();
            let (whole, cut) = (read(&[TRACE]), read(&pieces));
            prop_assert_eq!(&whole.0, &cut.0);
            prop_assert_eq!((whole.1.lines, whole.1.first_foreign), (cut.1.lines, cut.1.first_foreign));
        }

        #[test]
        fn any_bytes_are_lines(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
            let cut = cut.min(bytes.len());
            let (all, reader) = read(&[&bytes[..cut], &bytes[cut..]]);
            let expected = bytes.split(|&b| b == b'\n').count() - usize::from(bytes.is_empty() || bytes.ends_with(b"\n"));
            prop_assert_eq!(reader.lines, expected as u64);
            prop_assert!(all.len() as u64 + reader.foreign <= reader.lines);
        }

        #[test]
        fn what_is_written_is_read(address: u64, bytes in 1u32..5000, code: bool) {
            let address = address.min(u64::MAX - 5000);
            let line = format!("{} {address:08x},{bytes}", if code { "I " } else { " L" });
            let side = if code { Side::Code } else { Side::Data };
            prop_assert_eq!(parse_line(line.as_bytes()), Line::Access(Access { side, address, bytes }));
        }
    }
}
