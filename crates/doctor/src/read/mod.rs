// SPDX-License-Identifier: Apache-2.0
//! Reading the facts that a diagnosis rests on.
//!
//! | module | reads |
//! |---|---|
//! | `alone` | what this machine does for huge pages without hugelift, by trying it out |
//! | `machine` | /proc and /sys, of this machine or a recorded one |
//! | `probes` | what this kernel does, by trying it out |
//! | `process` | one process |
//! | `programs` | the programs that run |
//! | `shared` | the process with most shared memory |
//! | `parse` | the files of /proc that only a diagnosis needs |

mod alone;
mod machine;
mod parse;
mod probes;
mod process;
mod programs;
mod shared;

pub use machine::facts;
pub use process::facts as process;
pub use programs::programs;
pub use shared::shared;
