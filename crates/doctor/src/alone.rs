// SPDX-License-Identifier: Apache-2.0
//! What follows from what the machine does without hugelift.

use crate::facts::Facts;

/// What remains for hugelift, and what to set instead of it or beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remains {
    /// What the machine leaves on small pages, in a sentence.
    pub left: &'static str,
    /// The one setting that brings most, in a sentence; `None` if no setting helps.
    pub setting: Option<&'static str>,
}

/// Returns what remains; `None` if nothing was tried.
pub fn remains(facts: &Facts) -> Option<Remains> {
    let alone = facts.alone.as_ref()?;
    let works = |tried: &crate::facts::Tried| tried.works == Some(true);
    let is_never = facts.thp.enabled.as_ref().is_some_and(|reading| reading.value.contains("[never]"));
    let left = match (works(&alone.code), works(&alone.aligned_files)) {
        (true, _) => {
            "the kernel puts code on huge pages as it reads it from the disk; code that is in memory in small pages already \
             stays so (a file that was just written, or that is in use): hugelift prime, hugelift attach"
        }
        (false, true) => "code stays on small pages: hugelift prime or hugelift run puts it on huge ones",
        (false, false) => {
            "code stays on small pages, and the kernel maps libraries where huge pages of the page cache cannot be used: \
             hugelift run puts code on huge ones"
        }
    };
    let setting = if is_never {
        Some(
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: programs that ask for huge pages get them",
        )
    } else if works(&alone.loader) && !works(&alone.code) {
        Some(
            "GLIBC_TUNABLES=glibc.elf.thp=1 in the environment: the loader asks for huge pages for aligned code",
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
        let none = of(Alone::default(), "always [madvise] never");
        assert!(
            none.left.starts_with("code stays on small pages, and the kernel maps") && none.setting.is_none()
        );
        let aligned = Alone { aligned_files: Tried::yes(), ..Alone::default() };
        let with_loader = of(Alone { loader: Tried::yes(), ..aligned.clone() }, "always [madvise] never");
        assert!(with_loader.left.contains("hugelift prime or"), "{with_loader:?}");
        assert!(with_loader.setting.unwrap().starts_with("GLIBC_TUNABLES=glibc.elf.thp=1 "));
        let code = of(
            Alone { code: Tried::yes(), loader: Tried::yes(), ..aligned.clone() },
            "[always] madvise never",
        );
        assert!(code.left.starts_with("the kernel puts code") && code.setting.is_none(), "{code:?}");
        assert!(of(aligned, "always madvise [never]").setting.unwrap().starts_with("echo madvise > "));
    }
}
