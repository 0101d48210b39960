// SPDX-License-Identifier: Apache-2.0
//! Reads memory as fast as the nearest cache delivers it.
//!
//! A loop with one sum waits for each addition, and a loop with narrow loads issues too few bytes in a cycle:
//! both read at one speed from every cache. So each cycle has wide loads, and they are added to eight
//! independent sums. AVX2 loads 64 bytes a cycle on the CPUs that have it. AVX-512 would double that on some,
//! but its intrinsics need Rust 1.89; the L1 cache is told from the L3 cache without them.

/// Independent sums.
const SUMS: usize = 8;

/// Adds up `bytes` as little-endian words of eight bytes; zeros complete the last word.
pub fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            unsafe { x86::avx2(bytes) }
        } else {
            // SAFETY: every x86-64 CPU has SSE2.
            unsafe { x86::sse2(bytes) }
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: every AArch64 CPU that runs Linux has NEON.
        unsafe { arm::neon(bytes) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        portable(bytes)
    }
}

/// Adds up `bytes` without instructions of one architecture.
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn portable(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; SUMS];
    let (blocks, rest) = bytes.as_chunks::<{ SUMS * 8 }>();
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    total(sums).wrapping_add(words(rest))
}

/// Adds up a few bytes word by word.
fn words(bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    total(bytes.chunks(8).map(word))
}

fn total(sums: impl IntoIterator<Item = u64>) -> u64 {
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::block::sum::{SUMS, total, words};
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_add_epi64, _mm_setzero_si128, _mm256_add_epi64, _mm256_setzero_si256,
    };
    use std::mem::transmute;

    /// Adds up `bytes` by loads of 32 bytes.
    #[target_feature(enable = "avx2")]
    pub fn avx2(bytes: &[u8]) -> u64 {
        const WIDTH: usize = size_of::<__m256i>();
        let mut sums = [_mm256_setzero_si256(); SUMS];
        let (blocks, rest) = bytes.as_chunks::<{ SUMS * WIDTH }>();
        for block in blocks {
            for (sum, part) in sums.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
                // The load intrinsics would check their pointer in builds with debug assertions.
                // SAFETY: any bytes are a value of the type.
                *sum = _mm256_add_epi64(*sum, unsafe { transmute::<[u8; WIDTH], __m256i>(*part) });
            }
        }
        // SAFETY: both are plain bits.
        let lanes = sums.map(|sum| unsafe { transmute::<__m256i, [u64; WIDTH / 8]>(sum) });
        total(lanes.into_iter().flatten()).wrapping_add(words(rest))
    }

    /// Adds up `bytes` by loads of 16 bytes. Every x86-64 CPU has them.
    #[target_feature(enable = "sse2")]
    pub fn sse2(bytes: &[u8]) -> u64 {
        const WIDTH: usize = size_of::<__m128i>();
        let mut sums = [_mm_setzero_si128(); SUMS];
        let (blocks, rest) = bytes.as_chunks::<{ SUMS * WIDTH }>();
        for block in blocks {
            for (sum, part) in sums.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
                // SAFETY: any bytes are a value of the type.
                *sum = _mm_add_epi64(*sum, unsafe { transmute::<[u8; WIDTH], __m128i>(*part) });
            }
        }
        // SAFETY: both are plain bits.
        let lanes = sums.map(|sum| unsafe { transmute::<__m128i, [u64; WIDTH / 8]>(sum) });
        total(lanes.into_iter().flatten()).wrapping_add(words(rest))
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use crate::block::sum::{SUMS, total, words};
    use std::arch::aarch64::{uint64x2_t, vaddq_u64, vdupq_n_u64};
    use std::mem::transmute;

    /// Adds up `bytes` by loads of 16 bytes. Every AArch64 CPU that runs Linux has NEON.
    #[target_feature(enable = "neon")]
    pub fn neon(bytes: &[u8]) -> u64 {
        const WIDTH: usize = size_of::<uint64x2_t>();
        let mut sums = [vdupq_n_u64(0); SUMS];
        let (blocks, rest) = bytes.as_chunks::<{ SUMS * WIDTH }>();
        for block in blocks {
            for (sum, part) in sums.iter_mut().zip(block.as_chunks::<WIDTH>().0) {
                // SAFETY: any bytes are a value of the type.
                *sum = vaddq_u64(*sum, unsafe { transmute::<[u8; WIDTH], uint64x2_t>(*part) });
            }
        }
        // SAFETY: both are plain bits.
        let lanes = sums.map(|sum| unsafe { transmute::<uint64x2_t, [u64; WIDTH / 8]>(sum) });
        total(lanes.into_iter().flatten()).wrapping_add(words(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_gives_the_same_sum() {
        let mut random = fastrand::Rng::with_seed(7);
        let bytes: Vec<u8> = (0..2000).map(|_| random.u8(..)).collect();
        let lengths = (0..300).chain([511, 512, 513, 1023, 1999]);
        for (len, start) in lengths.flat_map(|len| [(len, 0), (len, 1)]) {
            let bytes = &bytes[start..start + len];
            let expected = bytes.chunks(8).fold(0, |sum: u64, word| {
                let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                sum.wrapping_add(word)
            });
            assert_eq!((sum(bytes), portable(bytes)), (expected, expected), "{len} bytes from {start}");
            #[cfg(target_arch = "x86_64")]
            {
                // SAFETY: every x86-64 CPU has SSE2.
                assert_eq!(unsafe { x86::sse2(bytes) }, expected, "{len} bytes from {start}");
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has AVX2.
                    assert_eq!(unsafe { x86::avx2(bytes) }, expected, "{len} bytes from {start}");
                }
            }
        }
    }
}
