// SPDX-License-Identifier: Apache-2.0
//! Keeps files on huge pages in the page cache: which they are, a round over them, the thread that does it, and where changes
//! show.

pub mod keeper;
pub mod layers;
pub mod observed;
pub mod place;
pub mod settings;
pub mod wanted;
pub mod watch;
pub mod worker;
