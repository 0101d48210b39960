// SPDX-License-Identifier: Apache-2.0
//! A program starts under every resource limit under which it starts without hugelift.
