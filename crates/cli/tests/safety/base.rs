// SPDX-License-Identifier: Apache-2.0
//! A program has the same coverage at each start, whatever base the kernel draws.
