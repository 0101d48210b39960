// SPDX-License-Identifier: Apache-2.0
//! What follows from what the machine does without hugelift.

use crate::facts::Facts;

/// What remains for hugelift, and what to set instead of it or beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remains {
    /// What the machine leaves on small pages, in a sentence; `None` if that could not be tried.
    pub left: Option<&'static str>,
    /// The setting that may help, in a sentence; `None` if none of those that are known does.
    pub setting: Option<&'static str>,
}

/// Returns what remains; `None` if nothing was tried.
pub fn remains(facts: &Facts) -> Option<Remains> {
    let alone = facts.alone.as_ref()?;
    let left = match (alone.code.works, alone.aligned_files.works) {
        (Some(true), _) => Some(
            "the kernel puts code on huge pages as it reads it from the disk; code that is in memory in small pages already \
             stays so (a file that was just written, or that is in use): hugelift prime, hugelift attach",
        ),
        (Some(false), Some(false)) => Some(
            "code stays on small pages, and the kernel maps libraries where huge pages of the page cache cannot be used: \
             hugelift run puts code on huge ones",
        ),
        (Some(false), _) => {
            Some("code stays on small pages: hugelift prime or hugelift run puts it on huge ones")
        }
        (None, _) => None,
    };
    let is_set = |word: &str| facts.thp.enabled.as_ref().is_some_and(|reading| reading.value.contains(word));
    let setting = if is_set("[never]") {
        Some(
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: programs that ask for huge pages get them",
        )
    } else if is_set("[madvise]") && alone.loader.works == Some(true) && alone.code.works == Some(false) {
        Some(
            "GLIBC_TUNABLES=glibc.elf.thp=1 in the environment: the loader asks for huge pages for code that was linked \
             with -z max-page-size=2097152",
        )
    } else {
        None
    };
    Some(Remains { left, setting })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Alone, Reading, Tried};

    fn of(alone: Alone, enabled: &str) -> Remains {
        let mut facts = Facts { alone: Some(alone), ..Facts::default() };
        facts.thp.enabled = Some(Reading { source: "enabled".into(), value: enabled.into() });
        remains(&facts).unwrap()
    }

    #[test]
    fn issue_32_6_what_remains_follows_from_what_was_tried() {
        assert_eq!(remains(&Facts::default()), None);
        // What could not be tried is not concluded.
        assert_eq!(of(Alone::default(), "always [madvise] never"), Remains { left: None, setting: None });
        let none = Alone { code: Tried::no(""), aligned_files: Tried::no(""), ..Alone::default() };
        assert!(
            of(none.clone(), "[always] never").left.unwrap().contains("and the kernel maps libraries where")
        );
        let aligned = Alone { aligned_files: Tried::yes(), ..none };
        let with_loader = Alone { loader: Tried::yes(), ..aligned.clone() };
        let found = of(with_loader.clone(), "always [madvise] never");
        assert!(found.left.unwrap().contains("hugelift prime or"), "{found:?}");
        assert!(found.setting.unwrap().starts_with("GLIBC_TUNABLES=glibc.elf.thp=1 "));
        // The loader asks for nothing where all memory gets huge pages.
        assert_eq!(of(with_loader.clone(), "[always] madvise never").setting, None);
        let code = of(Alone { code: Tried::yes(), ..with_loader }, "always [madvise] never");
        assert!(code.left.unwrap().starts_with("the kernel puts code") && code.setting.is_none(), "{code:?}");
        assert!(of(aligned, "always madvise [never]").setting.unwrap().starts_with("echo madvise > "));
    }
}
