// SPDX-License-Identifier: Apache-2.0
//! The addresses of loads and stores that a PMU has sampled, and what they say of the data of a process.
//!
//! PEBS and IBS write one address in each record of perf_event_open(2). SPE writes packets of its own ("Arm Architecture
//! Reference Manual for A-profile", chapter "Statistical Profiling Extension Sample Record Specification"): a header byte,
//! whose bits 5:4 say how many bytes follow, and those bytes.

use super::areas::Piece;
use super::count::Seen;
use std::collections::BTreeMap;

/// How often each page was met.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Sampled {
    /// By the number of the page: its address without the offset in it.
    pages: BTreeMap<u64, u64>,
}

impl Sampled {
    /// Adds addresses. `page` is the size of a page.
    pub fn add(&mut self, addresses: &[u64], page: u64) {
        for address in addresses {
            *self.pages.entry(address / page.max(1)).or_default() += 1;
        }
    }

    /// Returns what was seen of a piece with so many bytes in memory.
    pub fn seen(&self, piece: &Piece, resident: u64, page: u64) -> Seen {
        let page = page.max(1);
        let range = piece.range.start.0 / page..piece.range.end.0.div_ceil(page);
        let (mut pages, mut samples) = (0_u64, 0_u64);
        for (_, count) in self.pages.range(range) {
            pages += 1;
            samples = samples.saturating_add(*count);
        }
        let touched = pages.saturating_mul(page).min(resident);
        Seen { resident, watched: resident, touched, samples: Some(samples) }
    }
}

/// Header of an address packet: bits 7:3. Bits 2:0 are the index, which says what address it is.
const ADDRESS: u8 = 0b1011_0000;
/// The index of the virtual address of the data.
const DATA_VIRTUAL: u8 = 2;
/// Header of an extended packet, with the upper bits of the index; the next byte is the header proper.
const EXTENDED: u8 = 0b0010_0000;
const PADDING: u8 = 0;
const END: u8 = 1;
/// Bits of an address. Those above are a tag of the program.
const ADDRESS_BITS: u64 = (1 << 56) - 1;

/// Adds the data addresses in packets of SPE. A packet that is cut at the end is left out.
pub fn spe(packets: &[u8], addresses: &mut Vec<u64>) {
    let mut rest = packets;
    while let Some((&header, after)) = rest.split_first() {
        if matches!(header, PADDING | END) {
            rest = after;
            continue;
        }
        let (index, header, after) = match (header & 0b1111_1100, after.split_first()) {
            // It aligns what follows; further bytes of it are padding.
            (EXTENDED, Some((&PADDING, after))) => {
                rest = after;
                continue;
            }
            (EXTENDED, Some((&second, after))) => ((header & 3) << 3 | second & 7, second, after),
            (EXTENDED, None) => return,
            _ => (header & 7, header, after),
        };
        let length = 1_usize << (header >> 4 & 3);
        let Some((payload, next)) = after.split_at_checked(length) else { return };
        if let (true, Ok(bytes)) =
            (header & 0b1111_1000 == ADDRESS && index == DATA_VIRTUAL, <[u8; 8]>::try_from(payload))
        {
            addresses.push(u64::from_le_bytes(bytes) & ADDRESS_BITS);
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, Range};
    use proptest::prelude::*;

    fn piece(start: u64, end: u64) -> Piece {
        Piece { range: Range { start: Addr(start), end: Addr(end) }, place: 0 }
    }

    #[test]
    fn issue_31_2_pages_and_samples_of_a_piece() {
        let mut sampled = Sampled::default();
        sampled.add(&[0x20_0000, 0x20_0008, 0x20_1fff, 0x40_0000, 7], 4096);
        let seen = sampled.seen(&piece(0x20_0000, 0x40_0000), 1 << 20, 4096);
        assert_eq!(seen, Seen { resident: 1 << 20, watched: 1 << 20, touched: 8192, samples: Some(3) });
        // No more than what is in memory was touched.
        assert_eq!(sampled.seen(&piece(0x20_0000, 0x40_0000), 4096, 4096).touched, 4096);
        let empty = sampled.seen(&piece(0x60_0000, 0x80_0000), 4096, 4096);
        assert_eq!((empty.touched, empty.samples), (0, Some(0)));
    }

    /// A load as SPE writes it: its instruction, its data twice (virtual and physical), events, operation, latency, end.
    fn load(address: u64) -> Vec<u8> {
        let of = |header: u8, payload: &[u8]| [&[header], payload].concat();
        [
            of(0xb0, &0xffff_0000_1234_u64.to_le_bytes()),
            of(0x98, &[9, 0]),
            of(0x49, &[0]),
            of(0x52, &[3, 1]),
            of(0xb2, &address.to_le_bytes()),
            of(0xb3, &[0xee; 8]),
            of(0x64, &[1, 0, 0, 0]),
            vec![0x20, 0x98, 5, 0],
            vec![0x23, 0],
            of(0x71, &[7; 8]),
        ]
        .concat()
    }

    fn read(packets: &[u8]) -> Vec<u64> {
        let mut addresses = Vec::new();
        spe(packets, &mut addresses);
        addresses
    }

    #[test]
    fn issue_31_2_packets_of_spe_hold_the_addresses_of_data() {
        let all = [load(0xffff_1234_5678), vec![0; 5], load(0xb200_0000_0000_0042), vec![1]].concat();
        // The tag of the second one is left out.
        assert_eq!(read(&all), [0xffff_1234_5678_u64, 0x42]);
        // An address of another kind whose extended index has the same lower bits.
        assert!(read(&[0x21, 0xb2, 1, 2, 3, 4, 5, 6, 7, 8]).is_empty());
        let whole = load(42);
        let end =
            whole.windows(9).position(|window| window[0] == 0xb2 && window[1] == 42).expect("its address")
                + 9;
        for cut in 0..whole.len() {
            let want: &[u64] = if cut < end { &[] } else { &[42] };
            assert_eq!(read(&whole[..cut]), want, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn issue_31_2_no_packet_hurts(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes).len() <= bytes.len() / 9);
        }
    }
}
