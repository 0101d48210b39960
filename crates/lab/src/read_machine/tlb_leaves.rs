// SPDX-License-Identifier: Apache-2.0
//! What CPUID says of the TLBs, from the values of its registers.
//!
//! | vendor | leaves | book |
//! |---|---|---|
//! | Intel | 0x18; if that is empty, the descriptors of leaf 2 | Software Developer's Manual, volume 2A, CPUID |
//! | AMD, Hygon | 0x8000_0005, 0x8000_0006, 0x8000_0019 | AMD64 Architecture Programmer's Manual, volume 3, appendix E |
//!
//! A register of zeros says nothing: hypervisors clear leaves that they do not know. QEMU fills in values of
//! its own for a CPU of AMD, among them a direct-mapped TLB of 255 entries. No such TLB can exist, so a CPU
//! that shows an impossible TLB is not believed at all.

use crate::results::machine::Tlb;
use std::collections::BTreeMap;

/// The last subleaf of leaf 0x18 that is read. No CPU has more than a few dozen.
pub const LAST_OF_18: u32 = 63;

const KB4: u64 = 4 << 10;
const MB2: u64 = 2 << 20;
const GB1: u64 = 1 << 30;

/// The registers `eax`, `ebx`, `ecx` and `edx` of leaves, by leaf and subleaf.
#[derive(Clone, Default, Debug)]
pub struct Leaves(BTreeMap<(u32, u32), [u32; 4]>);

impl Leaves {
    /// Adds the registers of a leaf.
    pub fn insert(&mut self, leaf: u32, sub: u32, registers: [u32; 4]) {
        self.0.insert((leaf, sub), registers);
    }

    /// Returns the registers of a leaf: zeros if the CPU does not have it.
    pub fn get(&self, leaf: u32, sub: u32) -> [u32; 4] {
        self.0.get(&(leaf, sub)).copied().unwrap_or_default()
    }

    fn is_amd(&self) -> bool {
        // "Auth", "Hygo"
        matches!(self.get(0, 0)[1], 0x6874_7541 | 0x6f67_7948)
    }
}

/// Returns the TLBs, sorted. Several that hold pages of one size on one level count as one.
pub fn tlbs(leaves: &Leaves) -> Vec<Tlb> {
    let found = match leaves.get(0, 0)[1] {
        _ if leaves.is_amd() => amd(leaves).unwrap_or_default(),
        // "Genu"
        0x756e_6547 => match leaf_18(leaves) {
            none if none.is_empty() => leaf_2(leaves.get(2, 0)),
            found => found,
        },
        _ => Vec::new(),
    };
    let mut sums: BTreeMap<(String, u64, u32), u64> = BTreeMap::new();
    for tlb in found.into_iter().filter(|tlb| tlb.entries > 0) {
        *sums.entry((tlb.kind, tlb.page_bytes, tlb.level)).or_default() += tlb.entries;
    }
    sums.into_iter()
        .map(|((kind, page_bytes, level), entries)| Tlb { level, kind, page_bytes, entries })
        .collect()
}

/// Returns how many adjacent small pages an entry may hold. Zen (family 0x17 and later) holds up to four
/// that are contiguous in memory as well (Software Optimization Guide for AMD Family 17h, "PTE coalescing").
pub fn coalesced(leaves: &Leaves) -> u64 {
    let signature = leaves.get(1, 0)[0];
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    if leaves.is_amd() && family >= 0x17 { 4 } else { 1 }
}

fn tlb(level: u32, kind: &str, page_bytes: u64, entries: u32) -> Tlb {
    Tlb { level, kind: kind.into(), page_bytes, entries: u64::from(entries) }
}

/// Returns the TLBs of a CPU of AMD; `None` if one of them cannot exist.
fn amd(leaves: &Leaves) -> Option<Vec<Tlb>> {
    let [huge, small, ..] = leaves.get(0x8000_0005, 0);
    let mut all = Vec::new();
    for (pair, page_bytes) in [(small, KB4), (huge, MB2)] {
        for (half, kind) in [(pair >> 16, "data"), (pair & 0xffff, "instruction")] {
            // The associativity is a number of ways; 0xff is full associativity.
            let (ways, entries) = (half >> 8 & 0xff, half & 0xff);
            if ways != 0 {
                let possible = ways == 0xff || entries.is_multiple_of(ways) && is_power(entries / ways);
                possible.then_some(())?;
                all.push(tlb(1, kind, page_bytes, entries));
            }
        }
    }
    let [huge, small, ..] = leaves.get(0x8000_0006, 0);
    for (pair, page_bytes) in [(small, KB4), (huge, MB2)] {
        // Without an upper half the TLB in the lower half is for data too.
        let kinds = match pair >> 16 {
            0 => [("unified", pair & 0xffff), ("data", 0)],
            data => [("instruction", pair & 0xffff), ("data", data)],
        };
        all.extend(kinds.into_iter().filter_map(|(kind, half)| coded(2, kind, page_bytes, half)));
    }
    let [first, second, ..] = leaves.get(0x8000_0019, 0);
    for (level, pair) in [(1, first), (2, second)] {
        let halves = [("data", pair >> 16), ("instruction", pair & 0xffff)];
        all.extend(halves.into_iter().filter_map(|(kind, half)| coded(level, kind, GB1, half)));
    }
    Some(all)
}

/// Returns the TLB of a half register with a code of associativity in its upper four bits; 0 is a TLB that
/// is off.
fn coded(level: u32, kind: &str, page_bytes: u64, half: u32) -> Option<Tlb> {
    (half >> 12 & 0xf != 0).then(|| tlb(level, kind, page_bytes, half & 0xfff))
}

fn is_power(number: u32) -> bool {
    number.is_power_of_two()
}

/// Returns the TLBs of the subleaves of 0x18. A TLB for stores only is left out: the experiment loads.
fn leaf_18(leaves: &Leaves) -> Vec<Tlb> {
    let last = leaves.get(0x18, 0)[0].min(LAST_OF_18);
    let one = |sub: u32| {
        let [_, ebx, ecx, edx] = leaves.get(0x18, sub);
        let kind = match edx & 0x1f {
            1 | 4 => "data",
            2 => "instruction",
            3 => "unified",
            _ => return Vec::new(),
        };
        let entries = (ebx >> 16).saturating_mul(ecx);
        let level = edx >> 5 & 7;
        let sizes = [(0, KB4), (1, MB2), (3, GB1)].into_iter().filter(|(bit, _)| ebx & 1 << bit != 0);
        sizes.map(|(_, page_bytes)| tlb(level, kind, page_bytes, entries)).collect()
    };
    (0..=last).flat_map(one).collect()
}

/// Returns the TLBs of the descriptors of leaf 2: one byte each, but for the lowest byte of `eax`. Bit 31 of
/// a register that holds descriptors is clear.
fn leaf_2(registers: [u32; 4]) -> Vec<Tlb> {
    let valid = registers.iter().enumerate().filter(|(_, register)| *register & 1 << 31 == 0);
    let bytes = valid.flat_map(|(i, register)| {
        let skipped = usize::from(i == 0);
        register.to_le_bytes().into_iter().skip(skipped)
    });
    bytes.flat_map(descriptor).collect()
}

/// Returns the TLBs of a descriptor. Pages of 4 MB exist only in 32-bit mode; in 64-bit mode their entries
/// hold pages of 2 MB. 0xfe refers to leaf 0x18, and 0xff to leaf 4, which describes caches.
fn descriptor(byte: u8) -> Vec<Tlb> {
    let (level, kind, pages, entries): (u32, &str, &[u64], u32) = match byte {
        0x01 | 0x4f => (1, "instruction", &[KB4], 32),
        0x02 => (1, "instruction", &[MB2], 2),
        0x03 | 0xba => (1, "data", &[KB4], 64),
        0x04 => (1, "data", &[MB2], 8),
        0x05 => (2, "data", &[MB2], 32),
        0x0b => (1, "instruction", &[MB2], 4),
        0x50 => (1, "instruction", &[KB4, MB2], 64),
        0x51 => (1, "instruction", &[KB4, MB2], 128),
        0x52 => (1, "instruction", &[KB4, MB2], 256),
        0x55 => (1, "instruction", &[MB2], 7),
        0x56 => (1, "data", &[MB2], 16),
        0x57 | 0x59 => (1, "data", &[KB4], 16),
        0x5a | 0xc4 => (1, "data", &[MB2], 32),
        0x5b => (1, "data", &[KB4, MB2], 64),
        0x5c => (1, "data", &[KB4, MB2], 128),
        0x5d => (1, "data", &[KB4, MB2], 256),
        0x61 => (1, "instruction", &[KB4], 48),
        0x63 => return vec![tlb(1, "data", MB2, 32), tlb(1, "data", GB1, 4)],
        0x64 => (2, "data", &[KB4], 512),
        0x6a => (1, "data", &[KB4], 64),
        0x6b => (2, "data", &[KB4], 256),
        0x6c => (2, "data", &[MB2], 128),
        0x6d => (2, "data", &[GB1], 16),
        0x76 => (1, "instruction", &[MB2], 8),
        0xa0 => (1, "data", &[KB4], 32),
        0xb0 | 0xb6 => (1, "instruction", &[KB4], 128),
        0xb1 => (1, "instruction", &[MB2], 8),
        0xb2 | 0xb5 => (1, "instruction", &[KB4], 64),
        0xb3 => (1, "data", &[KB4], 128),
        0xb4 => (2, "data", &[KB4], 256),
        0xc0 => (1, "data", &[KB4, MB2], 8),
        0xc1 => (2, "unified", &[KB4, MB2], 1024),
        0xc2 => (1, "data", &[KB4, MB2], 16),
        0xc3 => {
            return vec![
                tlb(2, "unified", KB4, 1536),
                tlb(2, "unified", MB2, 1536),
                tlb(2, "unified", GB1, 16),
            ];
        }
        0xca => (2, "unified", &[KB4], 512),
        _ => return Vec::new(),
    };
    pages.iter().map(|&page_bytes| tlb(level, kind, page_bytes, entries)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AMD: [u32; 4] = [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65];
    const INTEL: [u32; 4] = [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69];

    fn leaves(all: &[(u32, u32, [u32; 4])]) -> Leaves {
        let mut leaves = Leaves::default();
        for &(leaf, sub, registers) in all {
            leaves.insert(leaf, sub, registers);
        }
        leaves
    }

    /// Returns the entries; 0 if the CPU does not say.
    fn entries(tlbs: &[Tlb], kind: &str, level: u32, page_bytes: u64) -> u64 {
        let same = |t: &&Tlb| (t.kind.as_str(), t.level, t.page_bytes) == (kind, level, page_bytes);
        tlbs.iter().find(same).map_or(0, |t| t.entries)
    }

    #[test]
    fn zen_4_in_a_guest_that_hides_the_leaf_of_1_gb_pages() {
        let leaves = leaves(&[
            (0, 0, AMD),
            (1, 0, [0x00a1_0f11, 0x0102_0800, 0xfffa_3203, 0x178b_fbff]),
            (0x8000_0005, 0, [0xff48_ff40, 0xff48_ff40, 0x2008_0140, 0x2008_0140]),
            (0x8000_0006, 0, [0x5c00_2200, 0x6c00_4200, 0x0400_6140, 0x0a00_9140]),
            (0x8000_0019, 0, [0; 4]),
        ]);
        let found = tlbs(&leaves);
        for page in [KB4, MB2] {
            assert_eq!((entries(&found, "data", 1, page), entries(&found, "data", 2, page)), (72, 3072));
            assert_eq!(
                (entries(&found, "instruction", 1, page), entries(&found, "instruction", 2, page)),
                (64, 512)
            );
        }
        assert_eq!((found.len(), coalesced(&leaves)), (8, 4));
    }

    #[test]
    fn zen_2_and_its_1_gb_pages() {
        let leaves = leaves(&[
            (0, 0, AMD),
            (1, 0, [0x0083_0f10, 0, 0, 0]),
            (0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140]),
            (0x8000_0006, 0, [0x4800_2200, 0x6800_4200, 0x0200_6140, 0x0800_9140]),
            (0x8000_0019, 0, [0xf040_f040, 0, 0, 0]),
        ]);
        let found = tlbs(&leaves);
        assert_eq!((entries(&found, "data", 1, KB4), entries(&found, "data", 2, KB4)), (64, 2048));
        assert_eq!((entries(&found, "data", 1, GB1), entries(&found, "data", 2, GB1)), (64, 0));
        assert_eq!((entries(&found, "data", 2, MB2), coalesced(&leaves)), (2048, 4));
    }

    /// The first Opterons: no second-level TLB for large pages, and no coalescing.
    #[test]
    fn k8() {
        let leaves = leaves(&[
            (0, 0, AMD),
            (1, 0, [0x0002_0f12, 0, 0, 0]),
            (0x8000_0005, 0, [0xff08_ff08, 0xff20_ff20, 0x4002_0140, 0x4002_0140]),
            (0x8000_0006, 0, [0, 0x4200_4200, 0x0400_8140, 0]),
        ]);
        let found = tlbs(&leaves);
        assert_eq!((entries(&found, "data", 1, KB4), entries(&found, "data", 2, KB4)), (32, 512));
        assert_eq!((entries(&found, "data", 1, MB2), entries(&found, "data", 2, MB2)), (8, 0));
        assert_eq!(coalesced(&leaves), 1);
    }

    #[test]
    fn values_that_qemu_makes_up_are_not_believed() {
        let found = tlbs(&leaves(&[
            (0, 0, AMD),
            (0x8000_0005, 0, [0x01ff_01ff, 0x01ff_01ff, 0x4002_0140, 0x4002_0140]),
            (0x8000_0006, 0, [0, 0x4200_4200, 0x0200_8140, 0]),
        ]));
        assert_eq!(found, []);
        // Its CPUs of Intel have descriptors of caches only, or none.
        for made_up in [[1, 0, 0, 0x002c_307d], [0; 4]] {
            assert_eq!(tlbs(&leaves(&[(0, 0, INTEL), (2, 0, made_up)])), []);
        }
        let zeros = (0x8000_0005, 0, [0; 4]);
        assert_eq!(tlbs(&leaves(&[(0, 0, AMD), zeros])), []);
        assert_eq!(tlbs(&Leaves::default()), []);
    }

    #[test]
    fn leaf_2_of_sandy_bridge_haswell_and_skylake() {
        let found =
            |edx: u32, eax: u32, ebx: u32| tlbs(&leaves(&[(0, 0, INTEL), (2, 0, [eax, ebx, 0, edx])]));
        let sandy_bridge = found(0x00ca_0000, 0x7603_5a01, 0x00f0_b2ff);
        assert_eq!(entries(&sandy_bridge, "data", 1, KB4), 64);
        assert_eq!(entries(&sandy_bridge, "instruction", 1, KB4), 64);
        assert_eq!(
            (entries(&sandy_bridge, "data", 1, MB2), entries(&sandy_bridge, "unified", 2, KB4)),
            (32, 512)
        );
        let haswell = found(0x00c1_0000, 0x7603_6301, 0x00f0_b5ff);
        assert_eq!((entries(&haswell, "data", 1, GB1), entries(&haswell, "unified", 2, MB2)), (4, 1024));
        let skylake = found(0x00c3_0000, 0x7603_6301, 0x00f0_b5ff);
        assert_eq!((entries(&skylake, "data", 1, KB4), entries(&skylake, "data", 1, MB2)), (64, 32));
        assert_eq!((entries(&skylake, "unified", 2, KB4), entries(&skylake, "unified", 2, GB1)), (1536, 16));
        assert_eq!(entries(&skylake, "instruction", 1, MB2), 8);
        // Bit 31 says that a register holds no descriptors.
        assert_eq!(found(0x80c3_0000, 0x8003_6301, 0), []);
    }

    /// A P-core of Alder Lake. Leaf 2 has only 0xfe (see leaf 0x18), 0xf0 (prefetch) and 0xff (see leaf 4).
    #[test]
    fn leaf_18_of_alder_lake() {
        let leaves = leaves(&[
            (0, 0, INTEL),
            (2, 0, [0x00fe_ff01, 0x0000_00f0, 0, 0]),
            (0x18, 0, [8, 0, 0, 0]),
            (0x18, 1, [0, 0x0008_0001, 0x20, 0x4022]),
            (0x18, 2, [0, 0x0008_0006, 0x04, 0x4022]),
            (0x18, 3, [0, 0x0010_000f, 0x01, 0x4125]),
            (0x18, 4, [0, 0x0006_0001, 0x10, 0x4024]),
            (0x18, 5, [0, 0x0004_0006, 0x08, 0x4024]),
            (0x18, 6, [0, 0x0008_0008, 0x01, 0x4124]),
            (0x18, 7, [0, 0x0008_0007, 0x80, 0x4043]),
            (0x18, 8, [0, 0x0008_0009, 0x80, 0x4043]),
        ]);
        let found = tlbs(&leaves);
        assert_eq!(entries(&found, "instruction", 1, KB4), 256);
        assert_eq!((entries(&found, "data", 1, KB4), entries(&found, "data", 1, MB2)), (96, 32));
        // Two arrays hold small pages.
        assert_eq!((entries(&found, "unified", 2, KB4), entries(&found, "unified", 2, MB2)), (2048, 1024));
        assert_eq!((entries(&found, "unified", 2, GB1), coalesced(&leaves)), (1024, 1));
    }

    proptest! {
        #[test]
        fn no_value_of_a_register_hurts(registers in proptest::collection::vec(any::<[u32; 4]>(), 8),
                                        intel: bool, last in 0u32..=u32::MAX) {
            let first = if intel { INTEL } else { AMD };
            let r = |i: usize| registers[i];
            let leaves = leaves(&[
                (0, 0, first), (1, 0, r(0)), (2, 0, r(1)), (0x18, 0, [last, r(2)[1], r(2)[2], r(2)[3]]),
                (0x18, 1, r(3)), (0x8000_0005, 0, r(4)), (0x8000_0006, 0, r(5)), (0x8000_0019, 0, r(6)),
            ]);
            prop_assert!(tlbs(&leaves).iter().all(|tlb| tlb.entries > 0));
            let _ = coalesced(&leaves);
        }
    }
}
