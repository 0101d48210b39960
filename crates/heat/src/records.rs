// SPDX-License-Identifier: Apache-2.0
//! The records that the kernel writes into a ring buffer (perf_event_open(2), "MMAP layout"), for events whose samples
//! hold the address of the instruction and, where a PMU tells it, that of its data.

use perf_event_open_sys::bindings;
use std::ops::Range;

/// Bytes of `struct perf_event_header`.
const HEADER: usize = 8;

/// What was read.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Instruction addresses in user space.
    pub user: Vec<u64>,
    /// Samples in the kernel, or in a guest of it.
    pub outside: u64,
    /// Instruction addresses in the kernel.
    pub kernel: Vec<u64>,
    /// Addresses of data.
    pub data: Vec<u64>,
    /// What a PMU has written into its own buffer and is whole.
    pub(crate) aux: Vec<Piece>,
    /// Samples that the kernel had no room for. Where a PMU writes by itself, how often it had none.
    pub lost: u64,
}

/// A stretch of the buffer of a PMU, by the positions that the kernel counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    start: u64,
    size: u64,
}

impl Piece {
    /// Returns its bytes; `bytes` begin at a position.
    pub(crate) fn of(self, begin: u64, bytes: &[u8]) -> &[u8] {
        let start = self.start.checked_sub(begin).and_then(|start| usize::try_from(start).ok());
        let size = usize::try_from(self.size).ok();
        let range = start.zip(size).and_then(|(start, size)| Some(start..start.checked_add(size)?));
        range.and_then(|range| bytes.get(range)).unwrap_or_default()
    }
}

impl Batch {
    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.user.clear();
        self.kernel.clear();
        self.data.clear();
        self.aux.clear();
        (self.outside, self.lost) = (0, 0);
    }

    /// Adds the records in `bytes`. What follows a record that cannot be right is left out: where the next one begins is
    /// unknown then.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while let Some((kind, misc, body, rest)) = record(bytes) {
            match kind {
                bindings::PERF_RECORD_SAMPLE => self.sample(misc, body),
                // The id of the event, and how many records were lost.
                bindings::PERF_RECORD_LOST => {
                    self.lost = self.lost.saturating_add(word(body, 8).unwrap_or(0));
                }
                bindings::PERF_RECORD_AUX => self.aux(body),
                _ => {}
            }
            bytes = rest;
        }
    }

    /// Adds what a PMU has written. What has gaps is left out: packets do not begin where they should.
    fn aux(&mut self, body: &[u8]) {
        let (Some(start), Some(size), Some(flags)) = (word(body, 0), word(body, 8), word(body, 16)) else {
            return;
        };
        let incomplete = u64::from(bindings::PERF_AUX_FLAG_TRUNCATED | bindings::PERF_AUX_FLAG_PARTIAL);
        self.lost = self.lost.saturating_add(u64::from(flags & incomplete != 0));
        if flags & u64::from(bindings::PERF_AUX_FLAG_PARTIAL) == 0 {
            self.aux.push(Piece { start, size });
        }
    }

    fn sample(&mut self, misc: u32, body: &[u8]) {
        match word(body, 0) {
            Some(address) if misc & CPU_MODE == bindings::PERF_RECORD_MISC_USER => self.user.push(address),
            Some(address) => {
                self.outside += 1;
                if misc & CPU_MODE == bindings::PERF_RECORD_MISC_KERNEL {
                    self.kernel.push(address);
                }
            }
            None => {}
        }
        // A guest of the process has addresses of its own. 0: the instruction has no data, or the PMU does not know its address.
        if matches!(misc & CPU_MODE, bindings::PERF_RECORD_MISC_USER | bindings::PERF_RECORD_MISC_KERNEL) {
            self.data.extend(word(body, 8).filter(|address| *address != 0));
        }
    }
}

/// The bits of `misc` that say in which mode the CPU was.
const CPU_MODE: u32 = bindings::PERF_RECORD_MISC_CPUMODE_MASK;

/// Splits the first record off: its type, its flags, what follows the header, and the bytes behind it.
fn record(bytes: &[u8]) -> Option<(u32, u32, &[u8], &[u8])> {
    let header = bytes.get(..HEADER)?;
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let size = usize::from(half(6));
    let body = bytes.get(HEADER..size)?;
    Some((kind, half(4).into(), body, &bytes[size..]))
}

fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

/// Returns which bytes of a ring of `size` bytes are new, in their order: from position `tail` to position `head`, which
/// only grow. The second piece is empty unless they wrap. `None` if that is more than the ring holds.
pub(crate) fn pieces(tail: u64, head: u64, size: usize) -> Option<[Range<usize>; 2]> {
    let length = usize::try_from(head.wrapping_sub(tail)).ok().filter(|length| *length <= size)?;
    let start = if size == 0 { 0 } else { usize::try_from(tail % size as u64).ok()? };
    let first = length.min(size - start);
    Some([start..start + first, 0..length - first])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(kind: u32, misc: u32, body: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend((misc as u16).to_ne_bytes());
        bytes.extend((8 + 8 * body.len() as u16).to_ne_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    fn sample(misc: u32, address: u64) -> Vec<u8> {
        one(bindings::PERF_RECORD_SAMPLE, misc, &[address])
    }

    fn read(bytes: &[u8]) -> Batch {
        let mut batch = Batch::default();
        batch.add(bytes);
        batch
    }

    const USER: u32 = bindings::PERF_RECORD_MISC_USER;
    const KERNEL: u32 = bindings::PERF_RECORD_MISC_KERNEL;

    #[test]
    fn issue_31_samples_and_losses() {
        let all = [
            sample(USER, 0x1234),
            sample(KERNEL, u64::MAX),
            one(bindings::PERF_RECORD_LOST, 0, &[9, 30]),
            one(bindings::PERF_RECORD_THROTTLE, 0, &[1, 2, 3]),
            // Other bits of the flags, as "the exact address".
            sample(USER | 1 << 14, 0x5678),
        ];
        assert_eq!(
            read(&all.concat()),
            Batch {
                user: vec![0x1234, 0x5678],
                outside: 1,
                kernel: vec![u64::MAX],
                lost: 30,
                ..Batch::default()
            }
        );
    }

    #[test]
    fn issue_31_2_a_sample_may_have_the_address_of_its_data() {
        let with = |misc, data| one(bindings::PERF_RECORD_SAMPLE, misc, &[0x1234, data]);
        let guest = bindings::PERF_RECORD_MISC_GUEST_USER;
        let all =
            [with(USER, 0x7f00_0000_1000), with(USER, 0), with(KERNEL, 0x42), with(guest, 0x43)].concat();
        let batch = read(&all);
        assert_eq!((batch.user.len(), batch.outside, batch.data), (2, 2, vec![0x7f00_0000_1000, 0x42]));
    }

    #[test]
    fn issue_31_2_a_pmu_says_what_it_has_written() {
        let aux = |words: &[u64]| one(bindings::PERF_RECORD_AUX, 0, words);
        let [truncated, partial] =
            [bindings::PERF_AUX_FLAG_TRUNCATED, bindings::PERF_AUX_FLAG_PARTIAL].map(u64::from);
        let batch = read(
            &[aux(&[100, 4, 0]), aux(&[104, 2, truncated]), aux(&[106, 9, partial]), aux(&[7])].concat(),
        );
        let bytes: Vec<u8> = (0..8).collect();
        let found: Vec<&[u8]> = batch.aux.iter().map(|piece| piece.of(100, &bytes)).collect();
        assert_eq!((found, batch.lost), (vec![&[0, 1, 2, 3][..], &[4, 5]], 2));
        // What is not in the buffer, or no longer.
        for (start, size) in [(99, 1), (104, 5), (u64::MAX, 2), (101, u64::MAX)] {
            assert!(Piece { start, size }.of(100, &bytes).is_empty(), "{start} {size}");
        }
    }

    #[test]
    fn issue_31_a_record_that_is_cut_ends_the_batch() {
        let whole = [sample(USER, 1), sample(USER, 2)].concat();
        for cut in 16..32 {
            assert_eq!(read(&whole[..cut]).user, [1], "{cut}");
        }
        // A size that does not hold the header, and one that reaches too far.
        for size in [0_u16, 7, 24] {
            let mut bad = sample(USER, 1);
            bad[6..8].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(read(&bad), Batch::default(), "{size}");
        }
        // A sample without an address, and a loss without a number.
        let short = [
            one(bindings::PERF_RECORD_SAMPLE, USER, &[]),
            one(bindings::PERF_RECORD_LOST, 0, &[1]),
            sample(USER, 5),
        ];
        assert_eq!(read(&short.concat()), Batch { user: vec![5], ..Batch::default() });
    }

    #[test]
    fn issue_31_new_bytes_wrap() {
        assert_eq!(pieces(0, 0, 64), Some([0..0, 0..0]));
        assert_eq!(pieces(8, 24, 64), Some([8..24, 0..0]));
        assert_eq!(pieces(64 + 56, 64 + 72, 64), Some([56..64, 0..8]));
        assert_eq!(pieces(3, 67, 64), Some([3..64, 0..3]));
        assert_eq!(pieces(0, 65, 64), None);
        assert_eq!(pieces(8, 0, 64), None);
        assert_eq!(pieces(0, 0, 0), Some([0..0, 0..0]));
    }

    proptest! {
        #[test]
        fn issue_31_no_bytes_hurt(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let batch = read(&bytes);
            prop_assert!(batch.user.len() as u64 + batch.outside <= bytes.len() as u64 / 16);
        }

        #[test]
        fn issue_31_what_is_written_is_read(addresses in prop::collection::vec(any::<u64>(), 0..40), tail in 0u64..4096) {
            let size = 1024;
            let written: Vec<u8> = addresses.iter().flat_map(|address| sample(USER, *address)).collect();
            let mut ring = vec![0; size];
            for (at, byte) in (tail..).zip(&written) {
                ring[at as usize % size] = *byte;
            }
            let [first, second] = pieces(tail, tail + written.len() as u64, size).expect("it fits");
            prop_assert_eq!(read(&[&ring[first], &ring[second]].concat()).user, addresses);
        }

        #[test]
        fn issue_31_no_position_leaves_the_ring(tail: u64, more in 0u64..9000, power in 0u32..13) {
            let size = 1 << power;
            if let Some(pieces) = pieces(tail, tail.wrapping_add(more), size) {
                prop_assert!(pieces.iter().all(|piece| piece.start <= piece.end && piece.end <= size));
                prop_assert_eq!(pieces.iter().map(|piece| piece.len() as u64).sum::<u64>(), more);
            }
        }
    }
}
