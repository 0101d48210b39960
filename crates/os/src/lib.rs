// SPDX-License-Identifier: Apache-2.0
//! Everything of hugelift that talks to Linux.
