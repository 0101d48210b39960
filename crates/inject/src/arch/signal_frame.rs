// SPDX-License-Identifier: Apache-2.0
//! A signal frame, whatever its layout.

/// A signal frame, ready to be written to the target's stack.
pub struct Frame {
    /// The frame's bytes.
    pub bytes: Vec<u8>,
    /// Offset in `bytes` at which the stack pointer must be for rt_sigreturn(2) to find the frame.
    pub sp_at: u64,
}

/// The alignment that the first byte of a frame must have.
pub const FRAME_ALIGN: u64 = 64;

/// Writes a little-endian word at an offset: both architectures are little-endian.
pub(super) fn put(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(slot) = bytes.get_mut(at..at + 8) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

/// Writes a little-endian word of 32 bits at an offset.
pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(slot) = bytes.get_mut(at..at + 4) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}
