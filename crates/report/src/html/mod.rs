// SPDX-License-Identifier: Apache-2.0
//! Results as HTML pages: single files that load nothing, least of all from a network.
//!
//! | module | holds |
//! |---|---|
//! | `page` | the document: escaping, colours, tables, the data as JSON |
//! | `label` | how wide labels are, and places where they do not collide |
//! | `axis` | axes of charts, with ticks and grid |
//! | `legend` | the legend under a chart |
//! | `range` | what an axis shows, so that an outlier does not flatten the rest |
//! | `plot` | curves of an experiment |
//! | [`map`] | the address space of a program as a grid of huge pages |
//! | [`compare`] | the pairs of a comparison |
//! | [`lab`] | the experiments |
//!
//! A chart is narrow (`axis::WIDTH`), and scales with its place in the page. So one drawing can be read in a window
//! of 420 pixels and of 1600. The tests check the geometry of the drawings (`geometry`), and in a browser what
//! becomes of them.

mod axis;
pub mod compare;
#[cfg(test)]
mod geometry;
pub mod lab;
mod label;
mod legend;
pub mod map;
mod page;
mod plot;
mod range;
