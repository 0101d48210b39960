// SPDX-License-Identifier: Apache-2.0
//! Reports of lifts and of counters, against cases worked out by hand and generated ones.

mod lift;
mod pmu;
