// SPDX-License-Identifier: Apache-2.0
//! The results of hugelift as text and as HTML pages. Nothing is computed here.
//!
//! | module | shows |
//! |---|---|
//! | [`comparison`] | bare against lifted: `hugelift compare` |
//! | [`pmu`] | counts of events: `hugelift stat` |
//! | [`side_by_side`] | the same of several states: `hugelift stat --against`, `hugelift compare --counters` |
//! | [`cost`] | what a process waited for: `hugelift inspect --cost` |
//! | [`lab`] | the experiments of `hugelift lab`, as text and as comma-separated values |
//! | [`walks`] | page walks on other CPUs: `hugelift lab walks` |
//! | [`doctor`] | a diagnosis |
//! | [`pool`] | the hugetlb pools, and what programs need of them |
//! | [`html`] | maps of programs, `comparison` and `lab` as self-contained HTML pages |
//! | `paint` | colours, for a terminal |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod comparison;
pub mod cost;
pub mod doctor;
pub mod html;
pub mod lab;
mod paint;
pub mod pmu;
pub mod pool;
pub mod side_by_side;
pub mod walks;
