// SPDX-License-Identifier: Apache-2.0
//! What hugelift found out, as text and as pictures. Nothing is computed here.
//!
//! A module of text for each kind of result; [`html`] draws pages that need nothing else.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod comparison;
pub mod doctor;
pub mod html;
pub mod lab;
pub mod lift;
pub mod pmu;
pub mod pool;
