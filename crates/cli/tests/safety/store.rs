// SPDX-License-Identifier: Apache-2.0
//! The store never runs stale code and never tells what is private.
