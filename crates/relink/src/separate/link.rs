// SPDX-License-Identifier: Apache-2.0
//! `.gnu_debuglink`: the name of the file with the debug information, zeros up to a multiple of four bytes, and the
//! CRC-32 of that file.

use super::contents::{self, New, loaded_end};
use super::refusal::Refusal;
use super::separated::Separated;
use crate::align::tables::{Tables, has_bytes};

/// The name of the section.
const NAME: &str = ".gnu_debuglink";

impl Separated {
    /// Makes the file name `debug`, which is called `name`, as its debug information. Returns false, and changes
    /// nothing, if the file names none.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if the file cannot be changed.
    pub fn link(&mut self, name: &[u8], debug: &[u8]) -> Result<bool, Refusal> {
        let tables = Tables::parse(&self.bytes)?;
        let is_link = |s: &_| has_bytes(s) && tables.section_name(&self.bytes, s) == NAME;
        let Some(section) = tables.sections.iter().position(is_link) else { return Ok(false) };
        let mut bytes = name.to_vec();
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(&crc32fast::hash(debug).to_le_bytes());
        let new = New { section, bytes, unpacked: None };
        self.bytes = contents::replaced(&self.bytes, &tables, loaded_end(&tables), &[new])?;
        Ok(true)
    }
}
