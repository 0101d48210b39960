// SPDX-License-Identifier: Apache-2.0
//! Statistics of paired measurements.
