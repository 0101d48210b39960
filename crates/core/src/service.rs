// SPDX-License-Identifier: Apache-2.0
//! The policy of `hugelift service`: which programs of a machine it lifts, how, and within which limits.
//!
//! ```text
//! service.d/*.toml, service.toml -> Policy;   Policy + Facts of a process -> Taken
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`policy`] | the whole policy, and the choice of a rule |
//! | [`written`] | the files as they are written, which is the reference of all keys |
//! | [`rule`], [`matching`] | a rule and its conditions |
//! | [`acts`] | what may be done with a process |
//! | [`container`] | the container of a process |
//! | `files` | all files together |
//! | `patterns` | the patterns of a condition, and what they match |
//! | [`limits`], [`share`], [`metrics`] | the rest of the configuration |
//! | [`verify`] | which programs are lifted because an experiment has shown a gain |
//! | [`source`] | a file by its name and its text |
//! | [`mod@unit`] | the systemd unit of a process |
//! | [`offer`] | what the service could have on huge pages if a person agrees |

pub mod acts;
pub mod container;
mod files;
pub mod limits;
pub mod matching;
pub mod metrics;
pub mod offer;
mod patterns;
pub mod policy;
pub mod rule;
pub mod share;
pub mod source;
#[cfg(test)]
mod tests;
pub mod unit;
pub mod verify;
pub mod written;
