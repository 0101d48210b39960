// SPDX-License-Identifier: Apache-2.0
//! The schemes of the model, beside those that are measured.

use super::published::{LOCK, WITH_EPOCHS};
use crate::contention::Scheme;
use crate::reclaim::compared::{DONATED, EPOCHS, HUES, LOCKED, SCHEMES, SPINNING};
use crate::results::Hue;

/// A scheme of the model.
#[derive(Clone, Copy)]
pub(super) struct Model {
    pub scheme: Scheme,
    pub name: &'static str,
    pub hue: Hue,
    /// Operations per second in the literature, with all its CPUs.
    pub published: Option<f64>,
    /// Why prediction and publication differ.
    pub why: &'static str,
}

pub(super) const MODELS: [Model; 4] = [
    Model {
        scheme: Scheme::Locked,
        name: SCHEMES[LOCKED].name,
        hue: HUES[LOCKED],
        published: Some(LOCK),
        why: "waiters of the source's lock spin while its holder runs; here they sleep soon",
    },
    Model {
        scheme: Scheme::Epochs,
        name: SCHEMES[EPOCHS].name,
        hue: HUES[EPOCHS],
        published: Some(WITH_EPOCHS),
        why: "the source then met its next limit, the accounting of swap reservations, which the model lacks",
    },
    Model {
        scheme: Scheme::Donated,
        name: SCHEMES[DONATED].name,
        hue: HUES[DONATED],
        published: None,
        why: "no figure of this operation is published for the list (r347695, review D19630)",
    },
    Model {
        scheme: Scheme::Spinning,
        name: SPINNING.name,
        hue: Hue::Small,
        published: Some(LOCK),
        why: "the source's waiters back off, so fewer of them take part in each hand-over, and they \
              sleep if the holder does",
    },
];

pub(super) fn locks() -> impl Iterator<Item = (usize, &'static Model)> {
    MODELS.iter().enumerate().filter(|(_, model)| matches!(model.scheme, Scheme::Locked | Scheme::Spinning))
}
