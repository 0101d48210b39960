// SPDX-License-Identifier: Apache-2.0
//! `hugelift align`: real programs and what each linker makes, re-laid; and how it behaves as a
//! command.

mod biased;
mod cache;
mod command;
mod corpus;
mod debug;
mod linkers;
mod loaded;
mod observers;
mod packed;
mod proof;
mod real;
mod refused;
mod relaid;
mod sections;
mod separate;
mod widened;
