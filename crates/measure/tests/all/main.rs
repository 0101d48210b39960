// SPDX-License-Identifier: Apache-2.0
//! ministat(1) against its published examples, and the formulas of `hugelift stat` on counts worked
//! out by hand.

mod ministat;
mod pmu;
