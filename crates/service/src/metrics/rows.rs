// SPDX-License-Identifier: Apache-2.0
//! Samples with labels, in the order in which they were given.
//!
//! The `Family` of the client library keeps its samples in a hash map, so that their order changes with each text. The order
//! of [`Rows`] stays.

use super::labels::Labels;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;

/// The samples of one name.
#[derive(Debug)]
pub struct Rows<M>(Vec<(Labels, M)>);

/// Returns gauges: numbers that rise and fall.
pub fn gauges<N>(rows: impl IntoIterator<Item = (Labels, N)>) -> Rows<ConstGauge<N>> {
    Rows(rows.into_iter().map(|(labels, number)| (labels, ConstGauge::new(number))).collect())
}

/// Returns counters: numbers that only rise.
pub fn counters<N>(rows: impl IntoIterator<Item = (Labels, N)>) -> Rows<ConstCounter<N>> {
    Rows(rows.into_iter().map(|(labels, number)| (labels, ConstCounter::new(number))).collect())
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for Rows<M> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
