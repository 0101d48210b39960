// SPDX-License-Identifier: Apache-2.0
//! The CPUs.
//!
//! A source is the maker's manual. Where it was read at second hand, or says less than the model needs, the comment says so.

use super::cpu::{Array, Cpu, Second};

/// All CPUs, in the order in which they are shown.
pub const CPUS: &[Cpu] = &[SKYLAKE_SP, ICE_LAKE_SP, ZEN_2, ZEN_3, ZEN_4, ZEN_5, NEOVERSE_N1, NEOVERSE_V2];

/// Skylake-SP, and Cascade Lake, which has the same core.
///
/// Intel 64 and IA-32 Architectures Optimization Reference Manual (248966), "TLB Parameters of the Skylake Client
/// Microarchitecture": instructions 128 entries of 4 kB in 8 ways and 8 of 2 MB for each hardware thread (fully associative by
/// CPUID descriptor 0x76); loads and stores 64 of 4 kB and 32 of 2 MB, in 4 ways; second level 1536 entries of 4 kB or 2 MB in
/// 12 ways, for both. The server's core has the same TLBs.
const SKYLAKE_SP: Cpu = Cpu {
    name: "skylake-sp",
    title: "Intel Skylake-SP",
    code: &[Array::new(128, 8).small(), Array::full(8).huge()],
    data: &[Array::new(64, 4).small(), Array::new(32, 4).huge()],
    second: Second::Shared(Array::new(1536, 12)),
};

/// Ice Lake-SP.
///
/// The same manual, "TLB Parameters of the Ice Lake Client Microarchitecture": instructions 128 entries of 4 kB in 8 ways and 8
/// of 2 MB for each hardware thread; loads 64 of 4 kB and 32 of 2 MB, in 4 ways; second level 2048 entries, all of which may
/// hold 4 kB and half of which 2 MB. It consists of two arrays of 8 ways and 128 sets, one of them without pages of 2 MB, as
/// CPUID leaf 0x18 lists them for the cores that followed. The model has one array of 16 ways in their place. The 16 entries
/// for stores alone are left out: stores use those of loads.
const ICE_LAKE_SP: Cpu = Cpu {
    name: "ice-lake-sp",
    title: "Intel Ice Lake-SP",
    code: &[Array::new(128, 8).small(), Array::full(8).huge()],
    data: &[Array::new(64, 4).small(), Array::new(32, 4).huge()],
    second: Second::Shared(Array::new(2048, 16).huge_in(8)),
};

/// An array of a Zen, whose entries coalesce four pages that are adjacent in memory.
///
/// Software Optimization Guides for AMD Family 17h (56305) and 19h (56665), on PTE coalescing. They do not name the arrays in
/// which an entry stays coalesced; the model coalesces in all.
const fn zen(entries: usize, ways: usize) -> Array {
    Array::new(entries, ways).coalescing()
}

/// The first level of a Zen: fully associative, all page sizes.
const fn zen_first(entries: usize) -> Array {
    zen(entries, entries)
}

/// Zen 2.
///
/// Software Optimization Guide for AMD Family 17h Models 30h and Greater (56305): first level 64 entries each for instructions
/// and data, fully associative, of all page sizes; second level 512 entries for instructions in 8 ways, 2048 for data in 16
/// ways, of 4 kB or 2 MB. The entries agree with CPUID of an EPYC of family 17h.
const ZEN_2: Cpu = Cpu {
    name: "zen-2",
    title: "AMD Zen 2",
    code: &[zen_first(64)],
    data: &[zen_first(64)],
    second: Second::Split { code: zen(512, 8), data: zen(2048, 16) },
};

/// Zen 3.
///
/// Software Optimization Guide for AMD Family 19h (56665): the sizes are those of Zen 2.
const ZEN_3: Cpu = Cpu { name: "zen-3", title: "AMD Zen 3", ..ZEN_2 };

/// Zen 4.
///
/// Software Optimization Guide for the AMD Zen4 Microarchitecture (57647): first level 64 entries for instructions and 72 for
/// data, fully associative; second level 512 in 8 ways, and 3072 in 24 ways. The entries agree with CPUID of an EPYC 9004.
const ZEN_4: Cpu = Cpu {
    name: "zen-4",
    title: "AMD Zen 4",
    code: &[zen_first(64)],
    data: &[zen_first(72)],
    second: Second::Split { code: zen(512, 8), data: zen(3072, 24) },
};

/// Zen 5.
///
/// Software Optimization Guide for the AMD Zen5 Microarchitecture (58455): first level 64 entries for instructions and 96 for
/// data, fully associative; second level 2048 in 8 ways, and 4096 in 16 ways. The entries agree with AMD's talk at Hot Chips
/// 2024.
const ZEN_5: Cpu = Cpu {
    name: "zen-5",
    title: "AMD Zen 5",
    code: &[zen_first(64)],
    data: &[zen_first(96)],
    second: Second::Split { code: zen(2048, 8), data: zen(4096, 16) },
};

/// Neoverse N1: Graviton 2, Ampere Altra.
///
/// Arm Neoverse N1 Core Technical Reference Manual (100616), which agrees with that of the Cortex-A76 (100798) on this: first
/// level 48 entries each for instructions and data, fully associative, of 4 kB, 64 kB or 2 MB; second level 1280 entries in 5
/// ways, for both. The format of an entry there (100798, table A6-31) shows that those of the second level may hold four
/// adjacent pages; the first level holds them one by one.
const NEOVERSE_N1: Cpu = Cpu {
    name: "neoverse-n1",
    title: "Arm Neoverse N1",
    code: &[Array::full(48).marked()],
    data: &[Array::full(48).marked()],
    second: Second::Shared(Array::new(1280, 5).marked().coalescing()),
};

/// Neoverse V2: Graviton 4, Grace.
///
/// Arm Neoverse V2 Core Technical Reference Manual (102375): first level 48 entries each for instructions and data, fully
/// associative; second level 2048 entries in 8 ways, for both. It does not say whether adjacent pages are coalesced; in the
/// model they are not.
const NEOVERSE_V2: Cpu = Cpu {
    name: "neoverse-v2",
    title: "Arm Neoverse V2",
    code: &[Array::full(48).marked()],
    data: &[Array::full(48).marked()],
    second: Second::Shared(Array::new(2048, 8).marked()),
};

/// Returns the CPU with this name.
///
/// # Errors
/// There is none; the message lists all names.
pub fn by_name(name: &str) -> Result<&'static Cpu, String> {
    CPUS.iter().find(|cpu| cpu.name == name).ok_or_else(|| {
        let names: Vec<&str> = CPUS.iter().map(|cpu| cpu.name).collect();
        format!("'{name}' is not one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::Side;
    use crate::walks::cpu::Page;

    #[test]
    fn each_array_can_exist_and_each_page_has_its_place() {
        for cpu in CPUS {
            let second = [Side::Code, Side::Data].map(|side| *cpu.second.of(side));
            for array in cpu.code.iter().chain(cpu.data).chain(&second) {
                let sets = array.entries / array.ways;
                assert!(
                    sets.is_power_of_two() && sets * array.ways == array.entries,
                    "{} {array:?}",
                    cpu.name
                );
                assert!(array.small_ways.max(array.huge_ways) == array.ways, "{} {array:?}", cpu.name);
            }
            for page in [Page::Small, Page::Contiguous, Page::Huge] {
                for first in [cpu.code, cpu.data] {
                    assert_eq!(first.iter().filter(|array| array.holds(page)).count(), 1, "{}", cpu.name);
                }
                assert!(second.iter().all(|array| array.holds(page)));
            }
        }
        assert!(by_name("zen-3").is_ok());
        assert!(by_name("zen-1").unwrap_err().contains("skylake-sp, ice-lake-sp"));
    }

    /// What `hugelift lab tlb` and `hugelift doctor` show of such a CPU is the same.
    #[test]
    fn a_cpu_as_its_own_leaves_describe_it() {
        let entries = |name: &str, level, kind: &str, page_bytes| {
            let tlbs = by_name(name).unwrap().tlbs();
            let same = |t: &&crate::results::machine::Tlb| {
                (t.level, t.kind.as_str(), t.page_bytes) == (level, kind, page_bytes)
            };
            tlbs.iter().find(same).map_or(0, |tlb| tlb.entries)
        };
        for page in [4 << 10, 2 << 20] {
            assert_eq!(entries("zen-4", 1, "data", page), 72);
            assert_eq!(entries("zen-4", 2, "data", page), 3072);
            assert_eq!(entries("zen-2", 2, "instruction", page), 512);
            assert_eq!(entries("skylake-sp", 2, "unified", page), 1536);
            assert_eq!(entries("skylake-sp", 2, "instruction", page), 0);
        }
        assert_eq!(entries("skylake-sp", 1, "instruction", 2 << 20), 8);
        assert_eq!(entries("ice-lake-sp", 2, "unified", 4 << 10), 2048);
        assert_eq!(entries("ice-lake-sp", 2, "unified", 2 << 20), 1024);
    }
}
