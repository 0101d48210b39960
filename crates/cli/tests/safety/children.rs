// SPDX-License-Identifier: Apache-2.0
//! The library is preloaded only where it can be loaded.
