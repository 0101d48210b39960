// SPDX-License-Identifier: Apache-2.0
//! The NUMA nodes of lifted memory (set_mempolicy(2), mbind(2)).

use std::fmt;
use std::str::FromStr;

/// A set of memory nodes, by number: 0 to 63.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Nodes(u64);

/// How many nodes [`Nodes`] can hold.
const MAX_NODES: u32 = u64::BITS;

impl Nodes {
    /// Returns the `nodemask` of mbind(2): bit n is node n.
    pub fn mask(self) -> u64 {
        self.0
    }

    /// Returns the nodes that are not among `other`.
    pub fn without(self, other: Nodes) -> Nodes {
        Nodes(self.0 & !other.0)
    }

    /// Returns whether this node is among them.
    pub fn has(self, node: u32) -> bool {
        1u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Returns whether there is no node.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromStr for Nodes {
    type Err = String;

    /// Reads a list as the kernel writes it (cpuset(7), "List format"): `0-1,3`.
    fn from_str(list: &str) -> Result<Nodes, String> {
        let wrong = || format!("'{list}' is not a list of memory nodes, as in 0 or 0-1,3");
        let number = |s: &str| s.parse::<u32>().map_err(|_| wrong());
        let mut mask = 0;
        for item in list.trim().split(',') {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            if last >= MAX_NODES {
                return Err(format!("node {last}: hugelift supports nodes 0 to {}", MAX_NODES - 1));
            }
            mask |= (first..=last).fold(0, |mask, n| mask | 1 << n);
        }
        Ok(Nodes(mask))
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut node = 0;
        while node < MAX_NODES {
            let run = (self.0 >> node).trailing_ones();
            match run {
                0 => {}
                1 => write!(f, "{comma}{node}")?,
                _ => write!(f, "{comma}{node}-{}", node + run - 1)?,
            }
            if run > 0 {
                comma = ",";
            }
            node += run.max(1);
        }
        Ok(())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where new pages come from, whatever the program's own policy says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The node of the CPU that the program runs on when the page is allocated (`MPOL_LOCAL`).
    Local,
    /// These nodes in turn (`MPOL_INTERLEAVE`).
    Interleave(Nodes),
    /// These nodes and no others (`MPOL_BIND`).
    On(Nodes),
}

impl Placement {
    /// Returns mode and nodes for mbind(2) (linux/mempolicy.h).
    pub fn mode(self) -> (u64, Nodes) {
        const MPOL_BIND: u64 = 2;
        const MPOL_INTERLEAVE: u64 = 3;
        const MPOL_LOCAL: u64 = 4;
        match self {
            Placement::Local => (MPOL_LOCAL, Nodes::default()),
            Placement::Interleave(nodes) => (MPOL_INTERLEAVE, nodes),
            Placement::On(nodes) => (MPOL_BIND, nodes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_nodes() {
        for (list, mask, shown) in
            [("0", 1, "0"), ("0-1,3", 0b1011, "0-1,3"), ("2,0\n", 0b101, "0,2"), ("0-63", u64::MAX, "0-63")]
        {
            let nodes: Nodes = list.parse().unwrap();
            assert_eq!((nodes.mask(), nodes.to_string().as_str()), (mask, shown), "{list}");
        }
        for wrong in ["", "a", "1-0", "-1", "1,,2", "0x1", "1 2", "\u{661}"] {
            let why = wrong.parse::<Nodes>().unwrap_err();
            assert!(why.contains(&format!("'{wrong}'")), "{why}");
        }
        assert_eq!("64".parse::<Nodes>().unwrap_err(), "node 64: hugelift supports nodes 0 to 63");
        assert!("0-4294967295".parse::<Nodes>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(mask in 1u64..) {
            let nodes = Nodes(mask);
            prop_assert_eq!(nodes.to_string().parse::<Nodes>().unwrap(), nodes);
        }

        #[test]
        fn any_text_is_nodes_or_an_error(text in ".*") {
            let _ = text.parse::<Nodes>();
        }
    }
}
