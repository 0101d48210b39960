// SPDX-License-Identifier: Apache-2.0
//! The hugetlb pools as an administrator sees them: what each holds by page size and NUMA node, how
//! requests change it, and how many pages a program needs
//! (Documentation/admin-guide/mm/hugetlbpage.rst).

use crate::addr::{PageSize, Range, human_bytes, size_word};
use crate::plan::{Span, plan, usual_page};
use crate::policy::{Backing, PageChoice, Policy};
use crate::printable::Untrusted;
use crate::quantity;
use crate::snapshot::{Extent, Pool, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

pub mod persist;

/// Version of the JSON that the `pool` commands print.
pub const VERSION: u32 = 1;

/// The pool of one page size. All counts are pages of that size.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SizePool {
    /// Bytes of a page.
    pub page_size: u64,
    /// It is the size that `vm.nr_hugepages` sets, and `MAP_HUGETLB` without a size uses.
    pub default: bool,
    /// Pages in the pool, including surplus ones.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
    /// Free pages that are reserved for existing mappings.
    pub reserved: u64,
    /// Pages above the pool's own size at the moment.
    pub surplus: u64,
    /// The most surplus pages that the kernel may make.
    pub overcommit: u64,
    /// Pages that a new mapping could get: free and not reserved, and surplus still to be made.
    pub available: u64,
    /// The shares of the NUMA nodes, by number.
    pub nodes: Vec<NodePool>,
}

/// A NUMA node's share of a pool, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePool {
    /// Number of the node.
    pub node: u32,
    /// Pages on this node, including surplus ones.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
    /// Pages above the node's own share at the moment.
    pub surplus: u64,
}

impl SizePool {
    /// Describes `pool` and its nodes; `default` is the machine's default huge page size.
    pub fn new(pool: Pool, default: Option<PageSize>, nodes: Vec<NodePool>) -> SizePool {
        SizePool {
            page_size: pool.page.bytes(),
            default: default == Some(pool.page),
            total: pool.total,
            // Each number was read from its own file, maybe at another moment.
            free: pool.free.min(pool.total),
            reserved: pool.reserved,
            surplus: pool.surplus,
            overcommit: pool.overcommit,
            available: pool.available(),
            nodes,
        }
    }

    /// Returns the pool's own size, which `nr_hugepages` sets.
    pub fn permanent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// Returns the pages that processes use.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Returns the own size of the pool, or of a node's share of it; `None` if there is no such node.
    pub fn permanent_on(&self, node: Option<u32>) -> Option<u64> {
        match node {
            None => Some(self.permanent()),
            Some(node) => {
                let share = self.nodes.iter().find(|n| n.node == node)?;
                Some(share.total.saturating_sub(share.surplus))
            }
        }
    }
}

/// How many pages, as typed: `64`, `+64`, `-64`, `128M`, `+1G`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    sign: Sign,
    unit: Unit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    Exactly,
    More,
    Fewer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Pages(u64),
    Bytes(u64),
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Amount, String> {
        let (sign, rest) = match text.split_at_checked(1) {
            Some(("+", rest)) => (Sign::More, rest),
            Some(("-", rest)) => (Sign::Fewer, rest),
            _ => (Sign::Exactly, text),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at(digits);
        let bad = || {
            format!(
                "'{text}' is not an amount: a number of pages as in 64, or bytes as in 128M; with + or - before it, the pool grows or shrinks by that much"
            )
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        if unit.is_empty() {
            return Ok(Amount { sign, unit: Unit::Pages(number) });
        }
        let bytes = quantity::bytes(rest).map_err(|_| bad())?;
        Ok(Amount { sign, unit: Unit::Bytes(bytes) })
    }
}

impl Amount {
    /// Returns the number of pages that a pool of `now` pages is to have; bytes are rounded up to whole
    /// pages.
    fn of(self, now: u64, page: u64) -> u64 {
        let pages = match self.unit {
            Unit::Pages(pages) => pages,
            Unit::Bytes(bytes) => bytes.div_ceil(page),
        };
        match self.sign {
            Sign::Exactly => pages,
            Sign::More => now.saturating_add(pages),
            Sign::Fewer => now.saturating_sub(pages),
        }
    }
}

/// `SIZE=AMOUNT`, or `AMOUNT` alone for the default size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The pool's page size; `None` for the default one.
    pub page: Option<PageSize>,
    /// How many pages.
    pub amount: Amount,
}

impl FromStr for Request {
    type Err = String;

    fn from_str(text: &str) -> Result<Request, String> {
        let (page, amount) = match text.split_once('=') {
            None => (None, text),
            Some((size, amount)) if size.eq_ignore_ascii_case("default") => (None, amount),
            Some((size, amount)) => (Some(size.parse()?), amount),
        };
        Ok(Request { page, amount: amount.parse()? })
    }
}

/// Which number of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `nr_hugepages`
    Pages,
    /// `nr_overcommit_hugepages`
    Overcommit,
}

/// One number to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Change {
    /// Bytes of a page.
    pub page_size: u64,
    /// It is the size that `vm.nr_hugepages` sets.
    pub default: bool,
    /// Only this node's share, if one was named.
    pub node: Option<u32>,
    /// Which number.
    pub kind: Kind,
    /// Its value now.
    pub from: u64,
    /// Its value as requested.
    pub to: u64,
}

impl Change {
    /// Returns the file that sets it.
    pub fn path(&self) -> String {
        let folder = format!("hugepages/hugepages-{}kB", self.page_size >> 10);
        match (self.kind, self.node) {
            (Kind::Overcommit, _) => format!("/sys/kernel/mm/{folder}/nr_overcommit_hugepages"),
            (Kind::Pages, None) => format!("/sys/kernel/mm/{folder}/nr_hugepages"),
            (Kind::Pages, Some(node)) => format!("/sys/devices/system/node/node{node}/{folder}/nr_hugepages"),
        }
    }

    /// Returns whether the pool must grow, for which the kernel needs contiguous memory.
    pub fn grows(&self) -> bool {
        self.kind == Kind::Pages && self.to > self.from
    }
}

/// Returns the changes that the requests ask for: the overcommit first, as it cannot fail for lack of
/// memory.
///
/// # Errors
/// Returns a message about a size or node that does not exist, or a size that is named twice.
pub fn changes(
    pools: &[SizePool],
    pages: &[Request],
    overcommit: &[Request],
    node: Option<u32>,
) -> Result<Vec<Change>, String> {
    // With one size named, --overcommit without a size means that one.
    let meant = match pages {
        [only] => only.page,
        _ => None,
    };
    let mut all: Vec<Change> = Vec::new();
    let wanted = overcommit.iter().map(|r| (Kind::Overcommit, Request { page: r.page.or(meant), ..*r }));
    for (kind, request) in wanted.chain(pages.iter().map(|r| (Kind::Pages, *r))) {
        let pool = find(pools, request.page)?;
        let node = node.filter(|_| kind == Kind::Pages);
        let from = match kind {
            Kind::Overcommit => pool.overcommit,
            Kind::Pages => pool.permanent_on(node).ok_or_else(|| no_node(pool, node))?,
        };
        let to = request.amount.of(from, pool.page_size);
        if all.iter().any(|c| (c.page_size, c.kind) == (pool.page_size, kind)) {
            return Err(format!("pages of {} are named twice", human_bytes(pool.page_size)));
        }
        all.push(Change { page_size: pool.page_size, default: pool.default, node, kind, from, to });
    }
    Ok(all)
}

fn find(pools: &[SizePool], page: Option<PageSize>) -> Result<&SizePool, String> {
    let found = match page {
        Some(page) => pools.iter().find(|p| p.page_size == page.bytes()),
        None => pools.iter().find(|p| p.default),
    };
    found.ok_or_else(|| {
        let sizes: Vec<String> = pools.iter().map(|p| human_bytes(p.page_size)).collect();
        match page {
            _ if pools.is_empty() => "this kernel has no hugetlb pools (CONFIG_HUGETLBFS)".into(),
            Some(page) => format!("this kernel has no pages of {page}; it has {}", sizes.join(", ")),
            None => format!("this kernel has no default size; name one of {}, as in 2M=64", sizes.join(", ")),
        }
    })
}

fn no_node(pool: &SizePool, node: Option<u32>) -> String {
    let nodes: Vec<String> = pool.nodes.iter().map(|n| n.node.to_string()).collect();
    let node = node.unwrap_or_default();
    let size = human_bytes(pool.page_size);
    if nodes.is_empty() {
        return format!("node {node}: the kernel shows no pools of {size} by node");
    }
    format!("there is no node {node} with a pool of {size}; nodes that have one: {}", nodes.join(", "))
}

/// What one program takes from the pools.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Need {
    /// The program as the user named it.
    pub program: Untrusted,
    /// Number of objects of which something is lifted.
    pub objects: usize,
    /// Pages by their size in bytes.
    pub pages: BTreeMap<u64, u64>,
}

/// Returns the pages that the program takes when it is lifted under `policy`, with pools and memory
/// that suffice. The addresses of relocatable objects are not known before the program runs: for these
/// it counts the most pages that any address could need.
pub fn need(program: impl Into<Untrusted>, snapshot: &Snapshot, policy: &Policy) -> Need {
    // The size that `run` takes depends on the pools as they are now.
    let usual = || usual_page(&snapshot.machine, Backing::Hugetlb).map(PageChoice::Only);
    let page = match policy.page {
        PageChoice::Usual => usual().unwrap_or_default(),
        chosen => chosen,
    };
    let mut snapshot = snapshot.clone();
    for pool in &mut snapshot.machine.pools {
        pool.free = u64::MAX / pool.page.bytes();
        (pool.total, pool.reserved) = (pool.free, 0);
    }
    (snapshot.machine.memory_left, snapshot.machine.memory_limit) = (u64::MAX, None);
    let policy = Policy { backings: vec![Backing::Hugetlb], page, ..policy.clone() };
    let plan = plan(&snapshot, &policy);
    let mut pages = BTreeMap::new();
    // Writable parts may be lifted to transparent huge pages, which take nothing from a pool.
    let takes = |s: &&Span| s.attempts.first().is_some_and(|a| a.backing == Backing::Hugetlb);
    let spans: Vec<&Span> = plan.spans.iter().filter(takes).collect();
    let mut objects: Vec<usize> = spans.iter().map(|s| s.object).collect();
    objects.dedup();
    let extents = snapshot.extents();
    let stretches: Vec<(Extent, Range)> = extents
        .chunk_by(|a, b| {
            (a.object, a.part, a.prot) == (b.object, b.part, b.prot) && a.range.end == b.range.start
        })
        .map(|run| (run[0], Range { start: run[0].range.start, end: run[run.len() - 1].range.end }))
        .collect();
    for span in spans {
        let Some(attempt) = span.attempts.first() else { continue };
        let relocatable = snapshot.objects.get(span.object).is_some_and(|o| o.headers.relocatable);
        let stretch = stretches
            .iter()
            .find(|(e, whole)| (e.object, e.part) == (span.object, span.part) && whole.covers(span.range));
        let most = stretch.filter(|_| relocatable).map_or(span.range.len(), |(_, whole)| whole.len());
        *pages.entry(attempt.page.bytes()).or_default() += most / attempt.page.bytes();
    }
    Need { program: program.into(), objects: objects.len(), pages }
}

/// Returns what all the programs take together, by page size in bytes.
pub fn sum(needs: &[Need]) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for (page, pages) in needs.iter().flat_map(|n| &n.pages) {
        *all.entry(*page).or_default() += pages;
    }
    all
}

/// Returns the commands that make the pools large enough for `needs`; none for pools that are.
pub fn commands(pools: &[SizePool], needs: &BTreeMap<u64, u64>) -> Vec<String> {
    let lacking = |(page, pages): (&u64, &u64)| {
        let available = pools.iter().find(|p| p.page_size == *page).map_or(0, |p| p.available);
        let lack = pages.saturating_sub(available);
        (lack > 0).then(|| format!("hugelift pool set {}=+{lack}", size_word(*page)))
    };
    needs.iter().filter_map(lacking).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::snapshot::Part;

    pub(crate) fn two_sizes() -> Vec<SizePool> {
        let node = |node, total, free, surplus| NodePool { node, total, free, surplus };
        let pool = |page, total, free, reserved, surplus, overcommit| Pool {
            page: PageSize::new(page).unwrap(),
            total,
            free,
            reserved,
            surplus,
            overcommit,
        };
        vec![
            SizePool::new(pool(1 << 30, 0, 0, 0, 0, 0), Some(PageSize::MB2), vec![]),
            SizePool::new(
                pool(2 << 20, 100, 40, 10, 4, 6),
                Some(PageSize::MB2),
                vec![node(0, 60, 10, 4), node(1, 40, 30, 0)],
            ),
        ]
    }

    fn set(
        pages: &[&str],
        overcommit: &[&str],
        node: Option<u32>,
    ) -> Result<Vec<(String, u64, u64)>, String> {
        let parse = |texts: &[&str]| texts.iter().map(|t| t.parse()).collect::<Result<Vec<Request>, _>>();
        let all = changes(&two_sizes(), &parse(pages)?, &parse(overcommit)?, node)?;
        Ok(all.iter().map(|c| (c.path(), c.from, c.to)).collect())
    }

    #[test]
    fn amounts_in_pages_and_bytes() {
        const DIR: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let nr = format!("{DIR}/nr_hugepages");
        assert_eq!(set(&["2M=64"], &[], None).unwrap(), [(nr.clone(), 96, 64)]);
        assert_eq!(set(&["64"], &[], None).unwrap(), [(nr.clone(), 96, 64)]);
        assert_eq!(set(&["default=+1"], &[], None).unwrap(), [(nr.clone(), 96, 97)]);
        assert_eq!(set(&["2048k=-100"], &[], None).unwrap(), [(nr.clone(), 96, 0)]);
        assert_eq!(set(&["2M=129M"], &[], None).unwrap(), [(nr.clone(), 96, 65)]);
        assert_eq!(
            set(&["2M=0"], &["+1G"], None).unwrap(),
            [(format!("{DIR}/nr_overcommit_hugepages"), 6, 518), (nr, 96, 0)]
        );
        let node = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
        assert_eq!(set(&["2M=+2"], &[], Some(1)).unwrap(), [(node.into(), 40, 42)]);
        let giant = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_overcommit_hugepages";
        assert_eq!(set(&[], &["1G=2"], None).unwrap(), [(giant.into(), 0, 2)]);
        // The size named for the pages applies to the overcommit too.
        assert_eq!(set(&["1G=1"], &["2"], None).unwrap()[0], (giant.into(), 0, 2));
    }

    #[test]
    fn errors_name_the_sizes_and_nodes_that_exist() {
        let error = |pages: &[&str], node| set(pages, &[], node).unwrap_err();
        assert!(error(&["32M=1"], None).contains("1 GB, 2 MB"));
        assert!(error(&["2M=1"], Some(7)).contains("no node 7"));
        assert!(error(&["2M=1", "default=2"], None).contains("twice"));
        for bad in ["2M=", "2M=x", "2M=1X", "3M=1", "=", "2M=--1", "2M=99999999999T", "2M=+", "é"] {
            assert!(set(&[bad], &[], None).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_lacking() {
        // 30 pages are free and not reserved, 2 surplus ones may still be made.
        let need = |pages| BTreeMap::from([(2 << 20, pages)]);
        assert_eq!(commands(&two_sizes(), &need(32)), Vec::<String>::new());
        assert_eq!(commands(&two_sizes(), &need(40)), ["hugelift pool set 2M=+8"]);
        assert_eq!(commands(&[], &BTreeMap::from([(1 << 30, 2)])), ["hugelift pool set 1G=+2"]);
    }

    #[test]
    fn a_program_needs_the_whole_pages_of_its_parts() {
        let text = Range { start: Addr(3 << 20), end: Addr(11 << 20) };
        let mut snapshot = crate::plan::tests::program(text);
        // The pool and the memory of now do not matter.
        (snapshot.machine.pools[1].free, snapshot.machine.memory_left) = (0, 0);
        let before = snapshot.clone();
        let got = need("prog", &snapshot, &Policy::default());
        assert_eq!(snapshot, before);
        // From 4 to 10 MB.
        assert_eq!((got.objects, &got.pages), (1, &BTreeMap::from([(2 << 20, 3)])));
        assert_eq!(sum(&[got.clone(), got]), BTreeMap::from([(2 << 20, 6)]));
        // At another address it could hold 8 MB in whole pages.
        snapshot.objects[0].headers.relocatable = true;
        assert_eq!(need("prog", &snapshot, &Policy::default()).pages, BTreeMap::from([(2 << 20, 4)]));
        let data = Policy { parts: vec![Part::Rodata], ..Policy::default() };
        assert_eq!(need("prog", &snapshot, &data).pages, BTreeMap::new());
    }

    #[test]
    fn writable_parts_take_pool_pages_only_on_request() {
        let pages = |data_backings: &[Backing]| {
            let policy = Policy {
                parts: vec![Part::Data, Part::Bss, Part::Heap],
                data_backings: data_backings.to_vec(),
                ..Policy::default()
            };
            need("prog", &crate::plan::tests::writable(), &policy).pages
        };
        assert_eq!(pages(&[Backing::Thp]), BTreeMap::new());
        assert_eq!(pages(&[Backing::Hugetlb, Backing::Thp]), BTreeMap::from([(2 << 20, 5)]));
    }
}
