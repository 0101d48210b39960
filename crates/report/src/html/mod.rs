// SPDX-License-Identifier: Apache-2.0
//! Pictures: reports as single HTML files that need nothing else, least of all a network.

pub mod axis;
pub mod compare;
pub mod lab;
pub mod map;
pub mod page;
pub mod plot;
