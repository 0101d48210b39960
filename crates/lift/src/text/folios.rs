// SPDX-License-Identifier: Apache-2.0
//! The table of the sizes of folios.

use hugelift_core::addr::human_bytes;
use hugelift_core::report::FolioSizes;
use hugelift_core::table::{LEFT, Table};

/// Returns a line for each part with memory in folios between a base page and a huge page, or for all parts if it is `verbose`;
/// nothing if there is no such memory.
pub fn folios(sizes: &FolioSizes, huge_page: u64, verbose: bool) -> String {
    let shown = sizes
        .parts
        .iter()
        .filter(|(_, folios)| verbose || folios.has_sizes_between(sizes.base_page, huge_page));
    let mut table = Table::new([LEFT.at_least(6), LEFT]);
    let mut any = false;
    for (part, folios) in shown {
        let of_size = |(size, bytes): (&u64, &u64)| format!("{} {}", human_bytes(*size), human_bytes(*bytes));
        let mut line = folios.bytes.iter().map(of_size).collect::<Vec<_>>().join(", ");
        if let Some(joined) = folios.joined_bytes.filter(|bytes| *bytes > 0) {
            line +=
                &format!("; {} side by side, as this CPU can hold in fewer TLB entries", human_bytes(joined));
        }
        table.row([part.as_str(), &line]);
        any = true;
    }
    if !any {
        return String::new();
    }
    let rest = if sizes.whole { "" } else { ", as far as it was read in 0.3 s" };
    format!("\nmemory by the size of its folios{rest}\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugelift_core::folios::Folios;

    #[test]
    fn issue_32_5_sizes_between_are_shown() {
        let of = |bytes: &[(u64, u64)], joined_bytes| Folios {
            bytes: bytes.iter().copied().collect(),
            joined_bytes,
        };
        let small = of(&[(4096, 8 << 20)], None);
        let mut sizes =
            FolioSizes { parts: [("anon".to_string(), small)].into(), whole: true, base_page: 4096 };
        let shown = |sizes: &FolioSizes, verbose| folios(sizes, 2 << 20, verbose);
        assert_eq!(shown(&sizes, false), "");
        assert!(shown(&sizes, true).contains("anon    4 kB 8 MB\n"), "{}", shown(&sizes, true));
        sizes.parts.insert("text".into(), of(&[(4096, 1 << 20), (65536, 6 << 20)], Some(7 << 20)));
        sizes.whole = false;
        assert_eq!(
            shown(&sizes, false),
            "\nmemory by the size of its folios, as far as it was read in 0.3 s\n\
             text    4 kB 1 MB, 64 kB 6 MB; 7 MB side by side, as this CPU can hold in fewer TLB entries\n"
        );
    }
}
