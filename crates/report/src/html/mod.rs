// SPDX-License-Identifier: Apache-2.0
//! Results as HTML pages: single files that load nothing, least of all from a network.
//!
//! | module | holds |
//! |---|---|
//! | `page` | the document: escaping, colours, tables, the data as JSON |
//! | `axis` | axes of charts, with ticks and grid |
//! | `plot` | curves of an experiment |
//! | [`map`] | the address space of a program as a grid of huge pages |
//! | [`compare`] | the pairs of a comparison |
//! | [`lab`] | the experiments |

mod axis;
pub mod compare;
pub mod lab;
pub mod map;
mod page;
mod plot;
