// SPDX-License-Identifier: Apache-2.0
//! Chooses the base of an executable from its file, the store and the options. `run` moves the program
//! there; `run --dry-run`, `inspect` and `pool need` show it there.

use crate::pagecache::is_primed;
use crate::store;
use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_core::policy::{Backing, PageChoice, Policy};
use hugelift_core::relocate::base::{Base, Bases, Sizes, congruent_residue, shared_base};
use hugelift_core::snapshot::Part;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::machine::{base_page, folios};
use std::path::Path;

/// How an executable is to be lifted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The user's policy.
    pub policy: &'a Policy,
    /// The size of a transparent huge page; `None` if the kernel has none.
    pub huge: Option<PageSize>,
}

/// An executable whose base is to be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Executable<'a> {
    /// A path by which its file can be opened.
    pub file: &'a Path,
    /// The file's name in `/proc/PID/maps`.
    pub name: &'a Path,
    /// Its program headers.
    pub headers: &'a Headers,
    /// What loading added to the stated addresses, if it has been loaded.
    pub bias: Option<u64>,
}

/// A base for an executable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The base.
    pub base: Base,
    /// The backing that it serves. A backing that copies is the first of these in the policy.
    pub backing: Backing,
}

/// Returns the base with which most of the executable can be huge, wherever it is now; `None` if every base is as good.
///
/// A page cache in huge folios comes first, as it costs nothing. All processes share the store's copies, so
/// all need the same base for them. Otherwise copies are made, and the base with the most whole huge pages
/// in the wanted parts is chosen.
pub fn best(executable: &Executable, wanted: Wanted) -> Option<Aim> {
    let policy = wanted.policy;
    let Executable { file, name, headers, bias: _ } = *executable;
    if !policy.objects.takes_path(name) {
        return None;
    }
    let sizes = sizes(wanted);
    let (parts, offers) = (&policy.parts, |backing| policy.backings.contains(&backing));
    let usual = sizes.huge.filter(|huge| policy.page.allows(*huge));
    if let Some(huge) = usual {
        let congruent = || congruent_residue(headers, parts, huge, sizes.base);
        if offers(Backing::Pagecache)
            && let Some(residue) = congruent()
            && is_primed(file, headers, residue, parts, huge)
        {
            return Some(Aim { base: Base { residue, page: huge }, backing: Backing::Pagecache });
        }
        let code = parts.contains(&Part::Text) || parts.contains(&Part::Rodata);
        if offers(Backing::Shared)
            && code
            && let Some(base) = shared_base(headers, name, &sizes)
            && store::may_have(policy)
        {
            return Some(Aim { base, backing: Backing::Shared });
        }
    }
    if !headers.relocatable {
        return None;
    }
    let base = Bases::new(headers, name, policy, &sizes).best()?;
    let backing = policy.backings.iter().find(|b| b.is_anonymous());
    Some(Aim { base, backing: backing.copied().unwrap_or(Backing::Thp) })
}

/// Returns the base that `hugelift run` gives an executable, as `of_file` of `hugelift_linux::elf::file_snapshot` asks for it.
pub fn of_run(wanted: Wanted) -> impl FnOnce(&ElfFile) -> Option<Base> {
    move |file| {
        let name = std::fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
        let executable = Executable { file: &file.path, name: &name, headers: &file.headers, bias: None };
        Some(best(&executable, wanted)?.base)
    }
}

/// Returns whether the executable gains by a move to the [`best`] base: always for what is there already, for
/// copies only if more of it can be huge there.
pub fn is_better(aim: Aim, executable: &Executable, wanted: Wanted) -> bool {
    let (false, Some(bias)) = (matches!(aim.backing, Backing::Pagecache | Backing::Shared), executable.bias)
    else {
        return true;
    };
    let sizes = sizes(wanted);
    let mut bases = Bases::new(executable.headers, executable.name, wanted.policy, &sizes);
    let now = bases.of(bias);
    let (now, then) = (bases.worth(now), bases.worth(aim.base));
    now.zip(then).is_some_and(|(now, then)| now < then)
}

/// Returns the page sizes that the policy asks for, of this machine.
fn sizes(wanted: Wanted) -> Sizes {
    let folios = if wanted.policy.page == PageChoice::Mixed { folios() } else { Vec::new() };
    Sizes { base: base_page(), huge: wanted.huge, folios }
}
