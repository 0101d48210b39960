// SPDX-License-Identifier: Apache-2.0
//! The rows of the table.

use crate::programs::under_hugelift;
use crate::warm::TempStore;
use anyhow::Result;
use hugelift_measure::program::Program;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    Bare,
    Pagecache,
    /// The first start, which makes the copy in the store.
    SharedFirst,
    /// A later start, which uses the copy in the store.
    Shared,
    Thp,
    Hugetlb,
}

pub(super) const ROWS: [Row; 6] =
    [Row::Bare, Row::Pagecache, Row::SharedFirst, Row::Shared, Row::Thp, Row::Hugetlb];

impl Row {
    pub fn title(self) -> &'static str {
        match self {
            Row::Bare => "bare, without hugelift",
            Row::Pagecache => "`pagecache`, primed",
            Row::SharedFirst => "`shared`, first start",
            Row::Shared => "`shared`, later starts",
            Row::Thp => "`thp`",
            Row::Hugetlb => "`hugetlb`",
        }
    }

    pub fn needs(self) -> &'static str {
        match self {
            Row::Bare => "",
            Row::Pagecache => "a file system with large folios ([which](filesystems.md)); `hugelift prime`",
            Row::SharedFirst => "a tmpfs that allows code; Linux 6.1, or root's own mount",
            Row::Shared => "a first start, as long as the store keeps the copy",
            Row::Thp => "`transparent_hugepage/enabled` not `never`",
            Row::Hugetlb => "a pool (`hugelift pool`), Linux 5.16 for the cheapest way",
        }
    }

    fn backing(self) -> Option<&'static str> {
        Some(match self {
            Row::Bare => return None,
            Row::Pagecache => "pagecache",
            Row::SharedFirst | Row::Shared => "shared",
            Row::Thp => "thp",
            Row::Hugetlb => "hugetlb",
        })
    }

    /// Returns `program` in this row, with further `options` of `hugelift run`.
    ///
    /// # Errors
    /// The hugelift to measure does not exist.
    pub fn of(self, program: &Program, store: &TempStore, options: &[&str]) -> Result<Program> {
        match self {
            Row::Bare => Ok(program.clone()),
            // `options` are for names of functions, for which the store needs no option.
            Row::SharedFirst | Row::Shared => store.lifted(program, &[]),
            _ => {
                let backing = self.backing().unwrap_or_default();
                under_hugelift(program, &[&["--quiet", "--backing", backing], options].concat())
            }
        }
    }
}
