// SPDX-License-Identifier: Apache-2.0
//! The schemes that are compared.

use super::scheme::{Crossbeam, Own, Scheme, Seize, Spinning};
use super::tasks::{self, Turn};
use crate::progress::Progress;
use crate::results::Hue;
use hugelift_epoch::{Donated, Epochs, Locked};
use std::time::Duration;

/// A scheme: its name and its measurements.
pub(super) struct Measurable {
    pub name: &'static str,
    pub uncontended: fn() -> f64,
    pub turn: fn(usize, Duration, &mut Progress) -> Option<Turn>,
}

const fn measurable<S: Scheme>() -> Measurable {
    Measurable { name: S::NAME, uncontended: tasks::uncontended::<S>, turn: tasks::turn::<S> }
}

/// The schemes in the order of tables: (a), (b) and (c) of `hugelift-epoch`, then the libraries.
pub(super) const SCHEMES: [Measurable; 5] = [
    measurable::<Own<Locked>>(),
    measurable::<Own<Epochs>>(),
    measurable::<Own<Donated>>(),
    measurable::<Crossbeam>(),
    measurable::<Seize>(),
];

pub(super) const LOCKED: usize = 0;
pub(super) const EPOCHS: usize = 1;
pub(super) const DONATED: usize = 2;
pub(super) const CROSSBEAM: usize = 3;

/// A lock whose waiters spin, for the model only.
pub(super) const SPINNING: Measurable = measurable::<Spinning>();

/// How plots show them.
pub(super) const HUES: [Hue; SCHEMES.len()] = [Hue::First, Hue::Second, Hue::Third, Hue::Small, Hue::Giant];
