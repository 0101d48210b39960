// SPDX-License-Identifier: Apache-2.0
//! Answers who asks the daemon, and asks it.

pub mod ask;
pub mod clients;
pub mod process;
pub mod socket;
pub mod status;
