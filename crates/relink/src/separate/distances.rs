// SPDX-License-Identifier: Apache-2.0
//! Says by how much each part of an object's address space moves.

/// A part of the address space that moves as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// First stated address in the original, in bytes.
    pub start: u64,
    /// First stated address behind it in the original.
    pub end: u64,
    /// By how many bytes it moves to higher addresses; a multiple of the base page.
    pub by: u64,
}

/// The parts of an object, by address, and how far each moves.
///
/// Parts keep their order, so that distances never decrease from one part to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distances {
    parts: Vec<Part>,
}

impl Distances {
    /// Makes the map from `parts`, which are sorted by address here.
    ///
    /// Returns `None` if parts overlap, one is empty, a later part moves less than an earlier one, or an
    /// address would leave the address space.
    pub fn new(mut parts: Vec<Part>) -> Option<Distances> {
        parts.sort_by_key(|part| part.start);
        let ordered = parts.windows(2).all(|pair| pair[0].end <= pair[1].start && pair[0].by <= pair[1].by);
        let sound = parts.iter().all(|part| part.start < part.end && part.end.checked_add(part.by).is_some());
        (ordered && sound).then_some(Distances { parts })
    }

    /// Returns the parts, by address.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the part that holds the byte at `address`.
    pub fn part(&self, address: u64) -> Option<Part> {
        let behind = self.parts.partition_point(|part| part.start <= address);
        let part = *self.parts.get(behind.checked_sub(1)?)?;
        (address < part.end).then_some(part)
    }

    /// Returns where the byte at `address` lies in the copy. An address just behind a part, such as that of
    /// the symbol `_end`, moves with that part, if no other part starts there.
    ///
    /// Returns `None` between parts: nothing says with which part such an address moves.
    pub fn image(&self, address: u64) -> Option<u64> {
        let ends = || self.parts.iter().find(|part| part.end == address).copied();
        self.part(address).or_else(ends).map(|part| address + part.by)
    }

    /// Returns whether the two addresses keep their distance.
    pub fn keeps(&self, a: u64, b: u64) -> bool {
        match (self.image(a), self.image(b)) {
            (Some(to_a), Some(to_b)) => to_a.wrapping_sub(to_b) == a.wrapping_sub(b),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances() -> Distances {
        let part = |start, end, by| Part { start, end, by };
        Distances::new(vec![part(0x5000, 0x9000, 0x2000), part(0, 0x4000, 0), part(0x9000, 0xa000, 0x3000)])
            .expect("ordered parts")
    }

    #[test]
    fn an_address_moves_with_its_part() {
        let distances = distances();
        let images = [0, 0x3fff, 0x4000, 0x4001, 0x5000, 0x8fff, 0x9000, 0xa000, 0xa001]
            .map(|address| distances.image(address));
        let expected = [
            Some(0),
            Some(0x3fff),
            Some(0x4000),
            None,
            Some(0x7000),
            Some(0xafff),
            Some(0xc000),
            Some(0xd000),
            None,
        ];
        assert_eq!(images, expected);
        assert!(distances.keeps(0x5000, 0x8000) && !distances.keeps(0x8fff, 0x9000));
    }

    #[test]
    fn parts_keep_their_order() {
        let part = |start, end, by| Part { start, end, by };
        assert!(Distances::new(vec![part(0, 2, 0), part(1, 3, 0)]).is_none(), "they overlap");
        assert!(Distances::new(vec![part(0, 1, 1), part(1, 2, 0)]).is_none(), "the second moves less");
        assert!(Distances::new(vec![part(1, 1, 0)]).is_none(), "it is empty");
        assert!(Distances::new(vec![part(0, 2, u64::MAX)]).is_none(), "it leaves the address space");
    }
}
