// SPDX-License-Identifier: Apache-2.0
//! What the container runtimes of this machine, and a file of pods, say of the container of a process.
//!
//! | module | holds |
//! |---|---|
//! | [`known`] | the containers that are known, by their ids |
//! | [`runtimes`] | where runtimes keep what they know |
//! | [`pods`] | the file of pods, which is read again when it changes |
//! | [`trusted`] | reads a file that nobody but root can change |

pub mod known;
pub mod pods;
pub mod runtimes;
pub mod trusted;
