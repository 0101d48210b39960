// SPDX-License-Identifier: Apache-2.0
//! The huge pages of this machine, and its pools, which are restored on drop.

use std::fs;
use std::path::{Path, PathBuf};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOLS: &str = "/sys/kernel/mm/hugepages";

fn number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.trim().parse().unwrap_or_else(|e| panic!("{}: {text}: {e}", path.display()))
}

/// Returns the size of a transparent huge page; `None` if there are none.
pub fn thp() -> Option<u64> {
    let enabled = fs::read_to_string(format!("{THP}/enabled")).ok()?;
    (!enabled.contains("[never]")).then(|| number(&Path::new(THP).join("hpage_pmd_size")))
}

/// Returns the page sizes of the kernel's pools, ascending.
pub fn sizes() -> Vec<u64> {
    let Ok(entries) = fs::read_dir(POOLS) else { return Vec::new() };
    let size = |name: String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> =
        entries.filter_map(|e| Some(size(e.ok()?.file_name().into_string().ok()?)? << 10)).collect();
    sizes.sort_unstable();
    sizes
}

/// Returns the size of hugetlb pages for tests that are not about sizes: not so small that the
/// libraries get some too, and not so large that a few of them take much memory.
pub fn moderate() -> Option<u64> {
    sizes().into_iter().find(|p| *p >= 2 << 20)
}

/// Returns the page size as hugelift's option has it.
pub fn option(page: u64) -> String {
    format!("{}K", page >> 10)
}

/// A pool whose size a test may set.
pub struct Pool {
    dir: PathBuf,
    saved: [(&'static str, u64); 2],
}

impl Pool {
    /// Returns the machine's pool for pages of `page` bytes, and sets its overcommit to 0.
    pub fn of(page: u64) -> Pool {
        Pool::at(&Path::new(POOLS).join(format!("hugepages-{}kB", page >> 10)))
    }

    /// Returns one node's pool.
    pub fn of_node(node: u32, page: u64) -> Pool {
        let name = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB", page >> 10);
        Pool::at(Path::new(&name))
    }

    fn at(dir: &Path) -> Pool {
        let saved = ["nr_hugepages", "nr_overcommit_hugepages"];
        let saved = saved.map(|name| {
            let path = dir.join(name);
            (name, if path.exists() { number(&path) } else { 0 })
        });
        let pool = Pool { dir: dir.to_path_buf(), saved };
        pool.write("nr_overcommit_hugepages", 0);
        pool
    }

    fn write(&self, name: &str, value: u64) {
        let path = self.dir.join(name);
        // For pages of 1 GB and for a node's share the file does not exist, or refuses the write.
        let _ = fs::write(path, value.to_string());
    }

    /// Sets the number of its pages. Returns false if the kernel cannot.
    pub fn set(&self, pages: u64) -> bool {
        self.write("nr_hugepages", pages);
        let got = number(&self.dir.join("nr_hugepages"));
        if got < pages {
            // Free memory is fragmented: a second try finds the blocks that compaction has made.
            let _ = fs::write("/proc/sys/vm/drop_caches", "3");
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            self.write("nr_hugepages", pages);
        }
        number(&self.dir.join("nr_hugepages")) == pages
    }

    /// Returns the number of free pages that are not reserved.
    pub fn free(&self) -> u64 {
        let reserved = self.dir.join("resv_hugepages");
        let reserved = if reserved.exists() { number(&reserved) } else { 0 };
        number(&self.dir.join("free_hugepages")) - reserved
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (name, value) in self.saved {
            self.write(name, value);
        }
    }
}
