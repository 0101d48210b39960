// SPDX-License-Identifier: Apache-2.0
//! What the service may use of the machine: the table `[limits]`.

use crate::service::share::{Amount, Share};
use crate::service::written::WrittenLimits;
use crate::toml_text::{Wrong, checked};

/// The machine's memory that copies may take, unless the configuration says otherwise: 2%.
const MEMORY: Amount = Amount::Share(Share::of_millionths(20_000));
/// The share of one CPU for the service itself, unless the configuration says otherwise: 0.2%.
const CPU: Share = Share::of_millionths(2_000);

/// What the service may use, on any machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Memory of the copies of all processes together.
    pub memory: Amount,
    /// The share of one CPU for what the service does by itself; it is above 0.
    pub cpu: Share,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: MEMORY, cpu: CPU }
    }
}

impl Limits {
    /// Checks what is written.
    ///
    /// # Errors
    /// Returns the value that is wrong, and why.
    pub fn check(written: &WrittenLimits) -> Result<Limits, Wrong> {
        let memory = checked("memory", written.memory.as_ref(), |text| Amount::parse(text))?;
        let cpu = checked("cpu", written.cpu.as_ref(), |text| cpu(text))?;
        Ok(Limits { memory: memory.unwrap_or(MEMORY), cpu: cpu.unwrap_or(CPU) })
    }

    /// Returns them on a machine with so many bytes of memory.
    pub fn on(self, machine: u64) -> Allowed {
        Allowed { memory: self.memory.bytes(machine), cpu: self.cpu }
    }
}

/// What the service may use on one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// Bytes of the copies of all processes together.
    pub memory: u64,
    /// The share of one CPU for what the service does by itself; it is above 0.
    pub cpu: Share,
}

fn cpu(text: &str) -> Result<Share, String> {
    match Share::parse(text)? {
        share if share.is_zero() => Err(format!("with '{text}' the service could do nothing")),
        share => Ok(share),
    }
}
