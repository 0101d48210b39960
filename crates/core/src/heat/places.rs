// SPDX-License-Identifier: Apache-2.0
//! Which object an address of code belongs to.

use crate::addr::{Addr, Range};
use crate::by_address::ByAddress;
use crate::snapshot::{Part, Snapshot};

/// What an address of code belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The code of an object, or a copy of it that lies where the object was loaded.
    Object(usize),
    /// Code in no file.
    Jit,
    /// Anything else that can be executed.
    Other,
}

/// The executable memory of a process.
#[derive(Clone, Debug)]
pub struct Places {
    /// Indices of objects. Headers tell what belongs to an object, not the file that is mapped there: so a lifted
    /// object has its copies.
    objects: ByAddress<usize>,
    mappings: ByAddress<Place>,
    /// Memory of the process itself that cannot be executed now.
    anonymous: ByAddress<()>,
}

impl Places {
    /// Finds the code in a snapshot.
    pub fn new(snapshot: &Snapshot) -> Places {
        let text = snapshot.extents().into_iter().filter(|extent| extent.part == Part::Text);
        let executable = snapshot.mappings.iter().filter(|mapping| mapping.prot.exec);
        let mappings = executable.map(|mapping| {
            // Where memory may not be writable and executable, a JIT maps an unlinked file twice.
            let is_jit = !mapping.is_kernel_code() && (!mapping.is_file() || mapping.deleted);
            (mapping.range, if is_jit { Place::Jit } else { Place::Other })
        });
        let anonymous = snapshot.mappings.iter().filter(|mapping| !mapping.prot.exec && !mapping.is_file());
        Places {
            objects: text.map(|extent| (extent.range, extent.object)).collect(),
            mappings: mappings.collect(),
            anonymous: anonymous.map(|mapping| (mapping.range, ())).collect(),
        }
    }

    /// Returns what holds `address`; `None` if nothing did that can be executed. Objects are by their index in the
    /// snapshot.
    pub fn at(&self, address: Addr) -> Option<Place> {
        let byte = Range::sized(address, 1)?;
        let object = self.objects.over(byte).next().map(|(_, object)| Place::Object(*object));
        object.or_else(|| self.mappings.over(byte).next().map(|(_, place)| *place))
    }

    /// Returns what holds `address`, at which something was executed before. A JIT takes the right to execute its code
    /// away while it writes to it.
    pub fn was_at(&self, address: Addr) -> Place {
        let is_own = Range::sized(address, 1).is_some_and(|byte| self.anonymous.is_over(byte));
        self.at(address).unwrap_or(if is_own { Place::Jit } else { Place::Other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::parse_maps;
    use crate::plan::tests::program;

    #[test]
    fn issue_31_a_lifted_object_has_its_copies() {
        let whole = Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) };
        let mut snapshot = program(whole);
        let text = snapshot.extents().into_iter().find(|e| e.part == Part::Text).expect("text");
        let inside = Addr(text.range.start.0 + 0x123);
        let place = Some(Place::Object(text.object));
        assert_eq!(Places::new(&snapshot).at(inside), place);
        let index = snapshot.mappings.iter().position(|m| m.range.covers(text.range)).expect("a mapping");
        snapshot.mappings[index].file = Default::default();
        snapshot.mappings[index].path = Default::default();
        assert_eq!(Places::new(&snapshot).at(inside), place);
    }

    #[test]
    fn issue_31_code_outside_of_objects_is_told_apart() {
        let mut snapshot = program(Range { start: Addr(0x40_0000), end: Addr(0xc0_0000) });
        snapshot.mappings.extend(
            parse_maps(
                b"7f0000000000-7f0000021000 rwxp 00000000 00:00 0 \n\
                  7f0000100000-7f0000121000 r-xs 00000000 00:01 9 /memfd:doublemapper (deleted)\n\
                  7f0000200000-7f0000221000 r-xp 00000000 00:03 9 /opt/blob\n\
                  7f0000300000-7f0000321000 rw-p 00000000 00:00 0 \n\
                  7fff00000000-7fff00002000 r-xp 00000000 00:00 0 [vdso]\n",
            )
            .expect("mappings"),
        );
        let places = Places::new(&snapshot);
        assert_eq!(places.at(Addr(0x7f00_0000_0010)), Some(Place::Jit));
        assert_eq!(places.at(Addr(0x7f00_0010_0010)), Some(Place::Jit));
        assert_eq!(places.at(Addr(0x7f00_0020_0010)), Some(Place::Other));
        assert_eq!(places.at(Addr(0x7f00_0030_0010)), None);
        assert_eq!(places.was_at(Addr(0x7f00_0030_0010)), Place::Jit);
        assert_eq!(places.was_at(Addr(0x7f00_0020_0010)), Place::Other);
        assert_eq!(places.was_at(Addr(u64::MAX)), Place::Other);
        assert_eq!(places.at(Addr(0x7fff_0000_0010)), Some(Place::Other));
        assert_eq!(places.at(Addr(0)), None);
        assert_eq!(places.at(Addr(u64::MAX)), None);
    }
}
