// SPDX-License-Identifier: Apache-2.0
//! Replaces RELRO: memory that the loader has written to, and that is read-only since. It is replaced as code is,
//! but its bytes are compared with the copy once more while the lent thread is stopped.

use super::files::is_mapped_alike;
use super::written::{Came, Piece};
use super::{Live, fault_of};
use crate::trace::calls::mremap_call;
use hugelift_core::maps::Mapping;
use hugelift_core::target::Fault;

impl Live {
    pub(super) fn replace_relro(&mut self, piece: &mut Piece, expected: &Mapping) -> Result<Came, Fault> {
        let pid = self.pid;
        piece.read_copy(pid)?;
        let (number, args) = mremap_call(piece.from, piece.over.start);
        let mut came = Came::NotNow("no thread of it could be borrowed just now".into());
        let made = self.borrow(|lent| {
            came = if !is_mapped_alike(pid, expected) {
                Came::Never("it has another protection now, or is another mapping".into())
            } else if !piece.is_copied(pid) {
                Came::Never("it was written to while it was copied".into())
            } else {
                match lent.call(number, args)? {
                    errno @ -4095..0 => Came::Refused("mremap", -errno as i32),
                    _ => Came::Replaced,
                }
            };
            Ok(0)
        });
        fault_of(made)?;
        Ok(came)
    }
}
