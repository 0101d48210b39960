// SPDX-License-Identifier: Apache-2.0
//! `/sys/kernel/mm`: transparent huge pages and the hugetlb pools
//! (Documentation/admin-guide/mm/transhuge.rst and hugetlbpage.rst).

use crate::machine::cgroup::ReadText;
use hugelift_core::addr::PageSize;
use hugelift_core::fields::{chosen, kilobytes};
use hugelift_core::snapshot::Pool;
use std::path::Path;

/// Where the kernel keeps the pools, a folder for each page size.
pub const POOLS: &str = "/sys/kernel/mm/hugepages";
/// Where the switches for transparent huge pages are.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The system-wide switch for transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThpMode {
    /// For every mapping.
    Always,
    /// Where `MADV_HUGEPAGE` asks for them.
    Madvise,
    /// Nowhere.
    Never,
}

/// Returns the switch and the size of a page; `None` for what the kernel does not have.
pub fn thp(read: ReadText) -> (Option<ThpMode>, Option<PageSize>) {
    let mode = read(&Path::new(THP).join("enabled")).and_then(|text| thp_mode(&text));
    let size = read(&Path::new(THP).join("hpage_pmd_size"))
        .and_then(|text| text.trim().parse().ok())
        .and_then(PageSize::new);
    // Kernels before 4.12 have no hpage_pmd_size.
    (mode, size.or_else(|| mode.and(cfg!(target_arch = "x86_64").then_some(PageSize::MB2))))
}

/// Returns the sizes in the folders `names` (`hugepages-64kB`) of [`THP`] that are switched on for memory
/// with `MADV_HUGEPAGE`, largest first (Linux 6.8). `inherit` stands for the system-wide switch.
pub fn folios(names: impl Iterator<Item = String>, read: ReadText) -> Vec<PageSize> {
    let common = thp(read).0.is_some_and(|mode| mode != ThpMode::Never);
    let size = |name: String| {
        let page = page_of_folder(&name)?;
        let text = read(&Path::new(THP).join(name).join("enabled"))?;
        let on = match chosen(&text)? {
            "always" | "madvise" => true,
            "inherit" => common,
            _ => false,
        };
        on.then_some(page)
    };
    let mut sizes: Vec<PageSize> = names.filter_map(size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Parses the name of a folder such as `hugepages-2048kB`.
fn page_of_folder(name: &str) -> Option<PageSize> {
    PageSize::new(kilobytes(name.strip_prefix("hugepages-")?.as_bytes())?)
}

fn thp_mode(text: &str) -> Option<ThpMode> {
    match chosen(text)? {
        "always" => Some(ThpMode::Always),
        "madvise" => Some(ThpMode::Madvise),
        "never" => Some(ThpMode::Never),
        _ => None,
    }
}

/// Returns the pools in the folders `names` (`hugepages-2048kB`) of [`POOLS`], largest page first.
pub fn pools(names: &[String], read: ReadText) -> Vec<Pool> {
    let mut pools: Vec<Pool> = names.iter().filter_map(|name| pool(name, read)).collect();
    pools.sort_by_key(|p| std::cmp::Reverse(p.page.bytes()));
    pools
}

fn pool(name: &str, read: ReadText) -> Option<Pool> {
    let page = page_of_folder(name)?;
    let folder = Path::new(POOLS).join(name);
    let number = |file: &str| read(&folder.join(file)).and_then(|t| t.trim().parse().ok());
    let total = number("nr_hugepages")?;
    // Gigantic pages have no such file on older kernels.
    let overcommit = number("nr_overcommit_hugepages").unwrap_or(0);
    // The start of every program waits for these reads, and most pools are empty.
    if total == 0 {
        return Some(Pool { page, total, free: 0, reserved: 0, surplus: 0, overcommit });
    }
    Some(Pool {
        page,
        total,
        free: number("free_hugepages")?,
        reserved: number("resv_hugepages").unwrap_or(0),
        surplus: number("surplus_hugepages").unwrap_or(0),
        overcommit,
    })
}

/// Returns how many free blocks of `2^order` base pages or more `/proc/buddyinfo` has, over all zones. Each
/// line is a zone, with a count for each order from 0 on.
pub fn free_blocks(buddyinfo: &str, order: u32) -> u64 {
    let zone = |line: &str| {
        let counts = line.split_once("zone")?.1.split_whitespace().skip(1);
        Some(counts.skip(order as usize).filter_map(|n| n.parse::<u64>().ok()).fold(0, u64::saturating_add))
    };
    buddyinfo.lines().filter_map(zone).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_an_order_and_above() {
        let text = "Node 0, zone      DMA      0      1      2\nNode 0, zone   Normal     90     80     7\n";
        assert_eq!([0, 1, 2, 3].map(|order| free_blocks(text, order)), [180, 90, 9, 0]);
        assert_eq!(free_blocks("Node 0, zone\nx zone a b\n\u{e9}", 0), 0);
    }

    #[test]
    fn thp_of_several_kernels() {
        let machine = |enabled: &'static str, size: Option<&'static str>| {
            thp(&move |p: &Path| match p.file_name()?.to_str()? {
                "enabled" => Some(enabled.to_string()),
                _ => size.map(str::to_string),
            })
        };
        let page = PageSize::new(32 << 20);
        assert_eq!(machine("always [madvise] never\n", Some("33554432\n")), (Some(ThpMode::Madvise), page));
        assert_eq!(machine("always madvise [never]\n", Some("33554432")).0, Some(ThpMode::Never));
        assert_eq!(machine("nonsense", Some("3")).0, None);
        assert_eq!(thp(&|_| None), (None, None));
    }

    #[test]
    fn pools_by_size() {
        let names = ["hugepages-2048kB", "x", "hugepages-3kB", "hugepages-1048576kB", "hugepages-64kB"]
            .map(String::from);
        let read = |p: &Path| {
            let (dir, file) = (p.parent()?.file_name()?.to_str()?, p.file_name()?.to_str()?);
            Some(match (dir, file) {
                ("hugepages-64kB", _) => return None,
                ("hugepages-1048576kB", "nr_overcommit_hugepages") => return None,
                (_, "nr_hugepages") => "8\n".into(),
                (_, "free_hugepages") => "6\n".into(),
                (_, "resv_hugepages") => "1\n".into(),
                (_, "surplus_hugepages") => "2\n".into(),
                _ => "4\n".to_string(),
            })
        };
        let got = pools(&names, &read);
        assert_eq!(got.iter().map(|p| p.page.bytes()).collect::<Vec<_>>(), [1 << 30, 2 << 20]);
        let small = Pool { page: PageSize::MB2, total: 8, free: 6, reserved: 1, surplus: 2, overcommit: 4 };
        assert_eq!(got[1], small);
        assert_eq!((got[0].overcommit, small.available()), (0, 7));
    }

    #[test]
    fn folios_that_are_switched_on() {
        let names = ["enabled", "hugepages-16kB", "hugepages-64kB", "hugepages-2048kB", "hugepages-128kB"];
        let sizes = |common: &'static str| {
            let read = move |p: &Path| {
                let text = match p.parent()?.file_name()?.to_str()? {
                    "transparent_hugepage" => common,
                    "hugepages-16kB" => "always inherit [madvise] never",
                    "hugepages-64kB" => "[always] inherit madvise never",
                    "hugepages-2048kB" => "always [inherit] madvise never",
                    _ => "always inherit madvise [never]",
                };
                Some(text.to_string())
            };
            folios(names.map(String::from).into_iter(), &read)
        };
        let kb = |n: u64| PageSize::new(n << 10).unwrap();
        assert_eq!(sizes("always [madvise] never"), [kb(2048), kb(64), kb(16)]);
        assert_eq!(sizes("always madvise [never]"), [kb(64), kb(16)]);
    }
}
