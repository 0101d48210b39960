// SPDX-License-Identifier: Apache-2.0
//! What CPUID says of the hypervisor and of the TLBs.

use crate::results::machine::Tlb;
use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

// Every x86-64 CPU has CPUID. Newer toolchains offer it as safe functions.
fn leaf(number: u32) -> CpuidResult {
    #[allow(unused_unsafe)]
    // SAFETY: the instruction only returns numbers.
    unsafe {
        __cpuid(number)
    }
}

/// Returns the name in the twelve letters of leaf 0x4000_0000; `None` if leaf 1 shows no hypervisor.
pub fn hypervisor() -> Option<String> {
    if leaf(1).ecx & 1 << 31 == 0 {
        return None;
    }
    let answer = leaf(0x4000_0000);
    let bytes: Vec<u8> =
        [answer.ebx, answer.ecx, answer.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    let name = hugelift_core::printable::text_to_parse(&bytes);
    let name: String = name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    let known = match name.trim() {
        "KVMKVMKVM" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU, emulated",
        "" => "unknown",
        other => other,
    };
    Some(known.to_string())
}

/// Returns what the CPU says of its TLBs: AMD in leaves 0x8000_0005, 6 and 0x19 (AMD64 Architecture
/// Programmer's Manual, volume 3, appendix E), Intel in leaf 0x18 (Software Developer's
/// Manual, volume 2A, CPUID).
pub fn tlbs() -> Vec<Tlb> {
    let vendor = leaf(0);
    let mut found = match vendor.ebx {
        // "Auth", "Hygo"
        0x6874_7541 | 0x6f67_7948 => amd(),
        // "Genu"
        0x756e_6547 if vendor.eax >= 0x18 => intel(),
        _ => Vec::new(),
    };
    found.retain(|tlb| tlb.entries > 0);
    found.sort_by(|a, b| (&a.kind, a.page_bytes, a.level).cmp(&(&b.kind, b.page_bytes, b.level)));
    found
}

fn amd() -> Vec<Tlb> {
    let most = leaf(0x8000_0000).eax;
    let tlb = |level, kind: &str, page_bytes: u64, entries: u32| Tlb {
        level,
        kind: kind.into(),
        page_bytes,
        entries: u64::from(entries),
    };
    let mut all = Vec::new();
    if most >= 0x8000_0005 {
        let first = leaf(0x8000_0005);
        all.extend([
            tlb(1, "data", 4 << 10, first.ebx >> 16 & 0xff),
            tlb(1, "instruction", 4 << 10, first.ebx & 0xff),
            tlb(1, "data", 2 << 20, first.eax >> 16 & 0xff),
            tlb(1, "instruction", 2 << 20, first.eax & 0xff),
        ]);
    }
    if most >= 0x8000_0006 {
        let second = leaf(0x8000_0006);
        all.extend([
            tlb(2, "data", 4 << 10, second.ebx >> 16 & 0xfff),
            tlb(2, "instruction", 4 << 10, second.ebx & 0xfff),
            tlb(2, "data", 2 << 20, second.eax >> 16 & 0xfff),
            tlb(2, "instruction", 2 << 20, second.eax & 0xfff),
        ]);
    }
    if most >= 0x8000_0019 {
        let giant = leaf(0x8000_0019);
        all.extend([
            tlb(1, "data", 1 << 30, giant.eax >> 16 & 0xfff),
            tlb(2, "data", 1 << 30, giant.ebx >> 16 & 0xfff),
        ]);
    }
    all
}

fn intel() -> Vec<Tlb> {
    let count = |sub: u32| {
        #[allow(unused_unsafe)]
        // SAFETY: the instruction only returns numbers.
        unsafe {
            __cpuid_count(0x18, sub)
        }
    };
    // The first answer says how many there are. No CPU has more than a few dozen.
    let last = count(0).eax.min(63);
    let tlb = |answer: CpuidResult| {
        let kind = match answer.edx & 0x1f {
            1 | 4 => "data",
            2 => "instruction",
            3 => "unified",
            _ => return Vec::new(),
        };
        let (ways, sets) = (u64::from(answer.ebx >> 16), u64::from(answer.ecx));
        let sizes = [(0, 4 << 10), (1, 2 << 20), (3, 1u64 << 30)];
        let sizes = sizes.into_iter().filter(|(bit, _)| answer.ebx & 1 << bit != 0);
        let level = answer.edx >> 5 & 7;
        sizes
            .map(|(_, page_bytes)| Tlb { level, kind: kind.into(), page_bytes, entries: ways * sets })
            .collect()
    };
    (0..=last).flat_map(|sub| tlb(count(sub))).collect()
}
