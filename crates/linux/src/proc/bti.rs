// SPDX-License-Identifier: Apache-2.0
//! Branch target identification of AArch64.

/// Returns whether a CPU of these features (`AT_HWCAP2`) honours `PROT_BTI` (arch/arm64/include/uapi/asm/hwcap.h).
pub(super) fn is_honoured(hwcap2: u64) -> bool {
    const HWCAP2_BTI: u64 = 1 << 17;
    cfg!(target_arch = "aarch64") && hwcap2 & HWCAP2_BTI != 0
}
