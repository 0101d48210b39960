// SPDX-License-Identifier: Apache-2.0
//! Programs that lift themselves, by libhugelift: linked in each way, preloaded, from C++ and Python.

mod built;
mod demos;
mod linked;
mod preloaded;
mod sanitizers;
mod servers;
