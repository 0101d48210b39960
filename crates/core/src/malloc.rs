// SPDX-License-Identifier: Apache-2.0
//! How allocators are told to put the heap on huge pages: by variables of the environment,
//! merged with what the user has said there, which always has the last word.
//!
//! | allocator | variable | documented in |
//! |---|---|---|
//! | glibc 2.35 and newer | `GLIBC_TUNABLES`: `glibc.malloc.hugetlb` | The GNU C Library, "Memory Allocation Tunables" |
//! | jemalloc 5.1 and newer | `MALLOC_CONF` (or with a prefix): `thp`, `metadata_thp` | jemalloc(3), TUNING |
//! | mimalloc | `MIMALLOC_ALLOW_LARGE_OS_PAGES` | its README, "Environment Options" |
//!
//! musl's and Go's heaps, and tcmalloc's, have no such switch.

/// An allocator that can be told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Allocator {
    /// The C library's own.
    Glibc,
    /// jemalloc; built with a prefix, it reads another variable.
    Jemalloc(Prefix),
    /// mimalloc.
    Mimalloc,
}

/// What stands before jemalloc's names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Prefix {
    /// Nothing: it is the program's malloc(3).
    None,
    /// `je_`, as Redis has it.
    Je,
    /// `_rjem_`, as Rust's tikv-jemallocator has it.
    Rjem,
}

/// Which pages the heap is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Transparent huge pages.
    Thp,
    /// The reserved pool, where the allocator can use it, else as [`Pages::Thp`].
    Hugetlb,
}

/// A variable for the program's environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

impl Allocator {
    /// Every allocator that is known.
    pub const ALL: [Allocator; 5] = [
        Allocator::Glibc,
        Allocator::Jemalloc(Prefix::None),
        Allocator::Jemalloc(Prefix::Je),
        Allocator::Jemalloc(Prefix::Rjem),
        Allocator::Mimalloc,
    ];

    /// The variable that it reads.
    pub fn variable(self) -> &'static str {
        match self {
            Allocator::Glibc => "GLIBC_TUNABLES",
            Allocator::Jemalloc(Prefix::None) => "MALLOC_CONF",
            Allocator::Jemalloc(Prefix::Je) => "JE_MALLOC_CONF",
            Allocator::Jemalloc(Prefix::Rjem) => "_RJEM_MALLOC_CONF",
            Allocator::Mimalloc => "MIMALLOC_ALLOW_LARGE_OS_PAGES",
        }
    }

    /// A string that stands alone, with a zero byte on either side, in the data of every
    /// program that has this allocator in it.
    pub fn mark(self) -> &'static [u8] {
        match self {
            Allocator::Glibc => b"glibc.malloc.hugetlb",
            // Its options have the same names whatever it is called.
            Allocator::Mimalloc => b"allow_large_os_pages",
            jemalloc => jemalloc.variable().as_bytes(),
        }
    }

    /// The allocator in a shared object of this file name (as in `libjemalloc.so.2`).
    pub fn of_library(file_name: &str) -> Option<Allocator> {
        match file_name.split('.').next()? {
            "libc" if file_name == "libc.so.6" => Some(Allocator::Glibc),
            "libjemalloc" => Some(Allocator::Jemalloc(Prefix::None)),
            "libmimalloc" | "libmimalloc-secure" => Some(Allocator::Mimalloc),
            _ => None,
        }
    }

    fn options(self, pages: Pages) -> &'static [(&'static str, &'static str)] {
        match (self, pages) {
            (Allocator::Glibc, Pages::Thp) => &[("glibc.malloc.hugetlb", "1")],
            (Allocator::Glibc, Pages::Hugetlb) => &[("glibc.malloc.hugetlb", "2")],
            (Allocator::Jemalloc(_), _) => &[("thp", "always"), ("metadata_thp", "auto")],
            (Allocator::Mimalloc, _) => &[],
        }
    }
}

/// What to set for `allocators`, given what the environment has (`current`). Nothing is set
/// that the user has set, and nothing of what he has set is lost.
pub fn settings(
    allocators: &[Allocator],
    pages: Pages,
    current: impl Fn(&str) -> Option<String>,
) -> Vec<Setting> {
    let setting = |allocator: &Allocator| {
        let name = allocator.variable();
        let had = current(name);
        let value = match allocator {
            Allocator::Mimalloc if had.is_some() => return None,
            Allocator::Mimalloc => "1".into(),
            Allocator::Glibc => merged(had.as_deref(), ":", "=", allocator.options(pages))?,
            Allocator::Jemalloc(_) => merged(had.as_deref(), ",", ":", allocator.options(pages))?,
        };
        Some(Setting { name, value })
    };
    allocators.iter().filter_map(setting).collect()
}

/// `had`, a list of options divided by `comma`, with those of `wanted` that it does not name in
/// front; `None` if it names them all. An empty list is as good as none.
fn merged(had: Option<&str>, comma: &str, equals: &str, wanted: &[(&str, &str)]) -> Option<String> {
    let had = had.unwrap_or_default();
    let named = |key: &str| had.split(comma).any(|o| o.split(equals).next() == Some(key));
    let new =
        wanted.iter().filter(|(key, _)| !named(key)).map(|(key, value)| format!("{key}{equals}{value}"));
    let mut all: Vec<String> = new.collect();
    if all.is_empty() {
        return None;
    }
    all.extend(Some(had.to_string()).filter(|h| !h.is_empty()));
    Some(all.join(comma))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(allocator: Allocator, pages: Pages, had: Option<&str>) -> Option<String> {
        let settings = settings(&[allocator], pages, |name| {
            assert_eq!(name, allocator.variable());
            had.map(String::from)
        });
        settings.into_iter().next().map(|s| s.value)
    }

    #[test]
    fn what_is_not_there_is_set() {
        let thp = |a| set(a, Pages::Thp, None).unwrap();
        assert_eq!(thp(Allocator::Glibc), "glibc.malloc.hugetlb=1");
        assert_eq!(thp(Allocator::Jemalloc(Prefix::Je)), "thp:always,metadata_thp:auto");
        assert_eq!(thp(Allocator::Mimalloc), "1");
        assert_eq!(set(Allocator::Glibc, Pages::Hugetlb, Some("")).unwrap(), "glibc.malloc.hugetlb=2");
    }

    #[test]
    fn what_the_user_says_stays_and_wins() {
        let glibc = |had| set(Allocator::Glibc, Pages::Thp, Some(had));
        assert_eq!(
            glibc("glibc.malloc.arena_max=1").unwrap(),
            "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
        );
        assert_eq!(glibc("glibc.malloc.hugetlb=0"), None);
        assert_eq!(glibc("glibc.malloc.check=3:glibc.malloc.hugetlb=2"), None);
        // Only a prefix of the name.
        assert!(glibc("glibc.malloc.hugetlbs=0").is_some());
        let je = |had| set(Allocator::Jemalloc(Prefix::None), Pages::Hugetlb, Some(had));
        assert_eq!(je("narenas:1,thp:never").unwrap(), "metadata_thp:auto,narenas:1,thp:never");
        assert_eq!(je("metadata_thp:disabled,thp:never"), None);
        assert_eq!(set(Allocator::Mimalloc, Pages::Thp, Some("0")), None);
    }

    #[test]
    fn libraries_by_their_names() {
        let of = Allocator::of_library;
        assert_eq!(of("libc.so.6"), Some(Allocator::Glibc));
        assert_eq!(of("libc.musl-x86_64.so.1"), None);
        assert_eq!(of("libc.so"), None); // musl's
        assert_eq!(of("libjemalloc.so.2"), Some(Allocator::Jemalloc(Prefix::None)));
        assert_eq!(of("libmimalloc.so.2.1"), Some(Allocator::Mimalloc));
        assert_eq!(of("libjemalloc_helper.so"), None);
        assert_eq!(of(""), None);
    }
}
