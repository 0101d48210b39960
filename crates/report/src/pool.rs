// SPDX-License-Identifier: Apache-2.0
//! The hugetlb pools as text: a table, and a bar for each pool that has pages.

use hugelift_core::addr::human_bytes;
use hugelift_core::pool::{Need, SizePool, commands, sum};
use hugelift_core::table::{LEFT, RIGHT, Table};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const TITLES: [&str; 8] = ["SIZE", "NODE", "TOTAL", "IN USE", "FREE", "RESERVED", "SURPLUS", "OVERCOMMIT"];
/// The least width of a bar.
const MIN_WIDTH: usize = 10;

/// Returns the table and the bars, in lines of at most `width` columns where possible.
pub fn show(pools: &[SizePool], width: usize) -> String {
    if pools.is_empty() {
        return "this kernel has no hugetlb pools (CONFIG_HUGETLBFS)\n".into();
    }
    let mut table = numbers(TITLES);
    for pool in pools {
        let n = |n: u64| n.to_string();
        table.row([
            format!("{}{}", human_bytes(pool.page_size), if pool.default { " *" } else { "" }),
            "all".into(),
            n(pool.total),
            n(pool.used()),
            n(pool.free),
            n(pool.reserved),
            n(pool.surplus),
            n(pool.overcommit),
        ]);
        // With one node its row would repeat that of the machine.
        for node in pool.nodes.iter().filter(|_| pool.nodes.len() > 1) {
            table.row([
                String::new(),
                node.node.to_string(),
                n(node.total),
                n(node.total.saturating_sub(node.free)),
                n(node.free),
                "-".into(),
                n(node.surplus),
                "-".into(),
            ]);
        }
    }
    let mut out = table.to_string();
    if pools.iter().any(|p| p.default) {
        out += "* the default size of MAP_HUGETLB and vm.nr_hugepages\n";
    }
    let filled: Vec<&SizePool> = pools.iter().filter(|p| p.total > 0).collect();
    for pool in &filled {
        let memory = human_bytes(pool.total.saturating_mul(pool.page_size));
        let _ = writeln!(out, "\n{} pages, {memory}", human_bytes(pool.page_size));
        let _ = writeln!(out, "{}", bar(pool, width.max(MIN_WIDTH)));
    }
    if !filled.is_empty() {
        out += "█ in use  ▒ reserved  ░ free\n";
    }
    out
}

/// A table with these titles, whose first column is text and the others numbers.
fn numbers<const N: usize>(titles: [&str; N]) -> Table {
    let mut columns = [RIGHT; N];
    columns[0] = LEFT;
    let mut table = Table::new(columns);
    table.row(titles);
    table
}

/// Draws a bar of at most `width` cells. A cell of several pages shows the state of the middle one.
fn bar(pool: &SizePool, width: usize) -> String {
    let cells = pool.total.min(width as u64);
    let reserved = pool.reserved.min(pool.free);
    let at = |cell: u64| {
        // The page in the middle of the cell.
        let page = (u128::from(2 * cell + 1) * u128::from(pool.total)) / u128::from(2 * cells);
        match u64::try_from(page).unwrap_or(u64::MAX) {
            page if page < pool.used() => '█',
            page if page < pool.used() + reserved => '▒',
            _ => '░',
        }
    };
    (0..cells).map(at).collect()
}

/// Returns what programs need, and the commands that provide it.
pub fn needs(needs: &[Need], pools: &[SizePool]) -> String {
    let mut table = numbers(["PROGRAM", "OBJECTS", "PAGES", "OF", "MEMORY"]);
    let mut row = |name: &str, objects: String, pages: &BTreeMap<u64, u64>| {
        for (size, count) in pages {
            let memory = human_bytes(size.saturating_mul(*count));
            table.row([name.into(), objects.clone(), count.to_string(), human_bytes(*size), memory]);
        }
        if pages.is_empty() {
            table.row([name.into(), objects, "0".into(), "-".into(), "-".into()]);
        }
    };
    for need in needs {
        row(&need.program.to_string(), need.objects.to_string(), &need.pages);
    }
    let all = sum(needs);
    if needs.len() > 1 {
        row("together", String::new(), &all);
    }
    let mut out = table.to_string();
    for (size, pages) in &all {
        let available = pools.iter().find(|p| p.page_size == *size).map_or(0, |p| p.available);
        let verdict = if available >= *pages { "enough" } else { "too few" };
        let _ = writeln!(out, "pool of {}: {available} available, {verdict}", human_bytes(*size));
    }
    for command in commands(pools, &all) {
        let _ = writeln!(out, "{command}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::addr::PageSize;
    use hugelift_core::pool::NodePool;
    use hugelift_core::snapshot::Pool;

    fn pool_of(page: PageSize, [total, free, reserved, surplus, overcommit]: [u64; 5]) -> Pool {
        Pool { page, total, free, reserved, surplus, overcommit }
    }

    /// Returns a pool of 2 MB pages, the usual size. It is on two nodes.
    fn usual() -> SizePool {
        let pool = pool_of(PageSize::MB2, [100, 40, 10, 4, 6]);
        let node = |node, total, free, surplus| NodePool { node, total, free, surplus };
        SizePool::new(pool, Some(PageSize::MB2), vec![node(0, 60, 10, 4), node(1, 40, 30, 0)])
    }

    #[test]
    fn a_table_and_a_bar() {
        let empty = pool_of(PageSize::new(1 << 30).unwrap(), [0; 5]);
        let shown = show(&[SizePool::new(empty, Some(PageSize::MB2), vec![]), usual()], 20);
        let lines: Vec<&str> = shown.lines().collect();
        let words = |i: usize| lines[i].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "1 GB all 0 0 0 0 0 0");
        assert_eq!(words(2), "2 MB * all 100 60 40 10 4 6");
        assert_eq!(words(3), "0 60 50 10 - 4 -");
        assert_eq!(words(4), "1 40 10 30 - 0 -");
        assert!(shown.contains("\n████████████▒▒░░░░░░\n"), "{shown}");
        assert!(lines.iter().all(|l| l.chars().count() <= 80), "{shown}");
    }

    #[test]
    fn every_page_has_a_cell_where_there_is_room() {
        let mut pool = usual();
        (pool.total, pool.free, pool.reserved) = (5, 3, 1);
        assert_eq!(bar(&pool, 80), "██▒░░");
        (pool.total, pool.free) = (u64::MAX, 0);
        assert_eq!(bar(&pool, 10), "██████████");
    }

    #[test]
    fn needs_end_in_a_command() {
        let need = |program: &str, pages| Need {
            program: program.into(),
            objects: 1,
            pages: BTreeMap::from([(2 << 20, pages)]),
        };
        let shown = needs(&[need("a\x1b", 30), need("b", 10)], &[usual()]);
        assert!(shown.contains("a\\x1b") && shown.contains("together"), "{shown}");
        assert!(shown.ends_with("32 available, too few\nhugelift pool set 2M=+8\n"), "{shown}");
    }
}
