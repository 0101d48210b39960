// SPDX-License-Identifier: Apache-2.0
//! The demo and the benchmarks.
fn main() {}
