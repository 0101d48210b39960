// SPDX-License-Identifier: Apache-2.0
//! Reads CPUID: the name of the hypervisor, and the leaves that describe TLBs.

use super::tlb_leaves::{LAST_OF_18, Leaves};
use std::arch::x86_64::__cpuid_count;

// Every x86-64 CPU has CPUID. Newer toolchains offer it as a safe function.
fn leaf(number: u32, sub: u32) -> [u32; 4] {
    #[allow(unused_unsafe)]
    // SAFETY: the instruction only returns numbers.
    let answer = unsafe { __cpuid_count(number, sub) };
    [answer.eax, answer.ebx, answer.ecx, answer.edx]
}

/// Returns the name in the twelve letters of leaf 0x4000_0000; `None` if leaf 1 shows no hypervisor.
pub fn hypervisor() -> Option<String> {
    if leaf(1, 0)[2] & 1 << 31 == 0 {
        return None;
    }
    let [_, ebx, ecx, edx] = leaf(0x4000_0000, 0);
    let bytes: Vec<u8> = [ebx, ecx, edx].into_iter().flat_map(u32::to_le_bytes).collect();
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

/// Returns the leaves that describe TLBs, as far as this CPU has them.
pub fn leaves() -> Leaves {
    let (most, most_extended) = (leaf(0, 0)[0], leaf(0x8000_0000, 0)[0]);
    let mut leaves = Leaves::default();
    for number in [0, 1, 2, 0x18] {
        if number <= most {
            leaves.insert(number, 0, leaf(number, 0));
        }
    }
    for sub in 1..=leaves.get(0x18, 0)[0].min(LAST_OF_18) {
        leaves.insert(0x18, sub, leaf(0x18, sub));
    }
    for number in [0x8000_0005, 0x8000_0006, 0x8000_0019] {
        if number <= most_extended {
            leaves.insert(number, 0, leaf(number, 0));
        }
    }
    leaves
}
