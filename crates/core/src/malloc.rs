// SPDX-License-Identifier: Apache-2.0
//! Makes allocators put the heap on huge pages: by environment variables, merged with the user's own
//! settings in them, which always win.
//!
//! | allocator | variable | documented in |
//! |---|---|---|
//! | glibc 2.35 and newer | `GLIBC_TUNABLES`: `glibc.malloc.hugetlb` | The GNU C Library, "Memory Allocation Tunables" |
//! | jemalloc 5.1 and newer | `MALLOC_CONF` (or with a prefix): `thp`, `metadata_thp` | jemalloc(3), TUNING |
//! | mimalloc | `MIMALLOC_ALLOW_LARGE_OS_PAGES` | its README, "Environment Options" |
//!
//! The heaps of musl, Go and tcmalloc have no such switch.

/// An allocator with such a variable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Allocator {
    /// The C library's own.
    Glibc,
    /// jemalloc; built with a prefix, it reads another variable.
    Jemalloc(Prefix),
    /// mimalloc.
    Mimalloc,
}

/// The prefix of jemalloc's names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Prefix {
    /// No prefix: it is the program's malloc(3).
    None,
    /// `je_`, as in Redis.
    Je,
    /// `_rjem_`, as in Rust's tikv-jemallocator.
    Rjem,
}

/// The pages for the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Transparent huge pages.
    Thp,
    /// The reserved pool, where the allocator can use it; otherwise as [`Pages::Thp`].
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
    /// All allocators.
    pub const ALL: [Allocator; 5] = [
        Allocator::Glibc,
        Allocator::Jemalloc(Prefix::None),
        Allocator::Jemalloc(Prefix::Je),
        Allocator::Jemalloc(Prefix::Rjem),
        Allocator::Mimalloc,
    ];

    /// Returns the variable that it reads.
    pub fn variable(self) -> &'static str {
        match self {
            Allocator::Glibc => "GLIBC_TUNABLES",
            Allocator::Jemalloc(Prefix::None) => "MALLOC_CONF",
            Allocator::Jemalloc(Prefix::Je) => "JE_MALLOC_CONF",
            Allocator::Jemalloc(Prefix::Rjem) => "_RJEM_MALLOC_CONF",
            Allocator::Mimalloc => "MIMALLOC_ALLOW_LARGE_OS_PAGES",
        }
    }

    /// Returns a string that is in the data of every program with this allocator, with a zero byte
    /// before and behind it.
    pub fn mark(self) -> &'static [u8] {
        match self {
            Allocator::Glibc => b"glibc.malloc.hugetlb",
            // Its options have the same names whatever the file is called.
            Allocator::Mimalloc => b"allow_large_os_pages",
            jemalloc => jemalloc.variable().as_bytes(),
        }
    }

    /// Returns the allocator in a shared object of this file name, such as `libjemalloc.so.2`.
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

/// Returns the variables to set for `allocators`, given the environment (`current`). An option that the
/// user has set is not set, and none of the user's options is lost.
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

/// Returns the list of options `had`, which `comma` separates, with the options of `wanted` that it does not name in front of
/// it. Returns `None` if it names them all.
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
    fn missing_options_are_set() {
        let thp = |a| set(a, Pages::Thp, None).unwrap();
        assert_eq!(thp(Allocator::Glibc), "glibc.malloc.hugetlb=1");
        assert_eq!(thp(Allocator::Jemalloc(Prefix::Je)), "thp:always,metadata_thp:auto");
        assert_eq!(thp(Allocator::Mimalloc), "1");
        assert_eq!(set(Allocator::Glibc, Pages::Hugetlb, Some("")).unwrap(), "glibc.malloc.hugetlb=2");
    }

    #[test]
    fn the_users_options_stay_and_win() {
        let glibc = |had| set(Allocator::Glibc, Pages::Thp, Some(had));
        assert_eq!(
            glibc("glibc.malloc.arena_max=1").unwrap(),
            "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
        );
        assert_eq!(glibc("glibc.malloc.hugetlb=0"), None);
        assert_eq!(glibc("glibc.malloc.check=3:glibc.malloc.hugetlb=2"), None);
        // The name is only a prefix of this one.
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
